"""DistributedDataParallel: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
ring_all_reduce     sums right and too much sent; by a store; never waited for; another dtype; other ways are right
average_gradients   Nones in another rank; too few digits; stale frozen gradients; buckets and gathers are right
accumulate          rank 0 right alone; all activations at once; clipped; by hand, after `no_sync`, is right
fine_tune           never unfrozen; unfrozen from the start; averaged weights; other ways to average are right
"""

import time

import torch
import torch.distributed as dist

from lessons.distributed_data_parallel import exercises as ex
from tests.answers import edits, right, wrong

send_then_receive = """        sending = dist.isend(give, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
"""

test_ring_all_reduce = edits(
    ex.ring_all_reduce,
    (send_then_receive, "        dist.send(give, (rank + 1) % n)\n        dist.recv(received, (rank - 1) % n)\n",
     "2 ranks, 12 elements: every rank waited in vain at `dist.send(give, (rank + 1) % n)`: all ranks were sending, and"
     " nobody was receiving"),
    (send_then_receive, "        dist.recv(received, (rank - 1) % n)\n        dist.send(give, (rank + 1) % n)\n",
     "all ranks were receiving, and nobody was sending"),
    ("take.copy_(received)", "take += received", "rank 0's value twice"),
    ("take += received", "take.copy_(received)", "element 0 holds"),
    ("step < n - 1", "step < n", "twice"),
    ("2 * (n - 1)", "2 * n - 3", "2 ranks, 12 elements: in rank 0"),
    ("2 * (n - 1)", "2 * (n - 2)", "nothing was sent: how often do your loops run?"),
    ("2 * (n - 1)", "2", "3 ranks, 12 elements: in rank 0, element"),
    ("tensor.tensor_split(n)", "tensor.clone().tensor_split(n)", "`tensor` holds what it held before, in every rank"),
    ("tensor.tensor_split(n)", "tensor.chunk(n)", "IndexError"),
    ("tensor.tensor_split(n)", "tensor.split(len(tensor) // n)", "2 ranks, 5 elements: in rank 0, element 4 holds"),
    ("torch.empty_like(take)", "torch.empty(len(take), dtype=torch.float64)", "2 ranks, 5 elements: in rank 0"),
    ("        sending.wait()\n", "", "never waited for it"),
    ("dist.recv(received, (rank - 1) % n)", "dist.irecv(received, (rank - 1) % n)", "never waited for it"),
    ("    rank, n =", "    dist.init_process_group('gloo')\n    rank, n =",
     "initialize the default process group twice"),
    ("            take.copy_(received)", "            take.copy_(received)\n    tensor /= n", "rank 0 holds the mean"),
    ("            take.copy_(received)", "            take.copy_(received)\n    dist.destroy_process_group()",
     "it had destroyed the process group"),
    ("dist.recv(received, (rank - 1) % n)", "dist.recv(received, (rank + 1) % n)",
     "what rank 0 sends to rank 1, rank 1 receives from rank 0"),
    ("tensor.tensor_split(n)", "tensor[:len(tensor) // n * n].chunk(n)", "N need not divide the length"),
)


def exchanged(tensor):
    """Everything from all ranks, by sending everything to everybody."""
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    sends, parts = [dist.isend(tensor, other) for other in others], [torch.empty_like(tensor) for _ in others]
    for other, part in zip(others, parts, strict=True):
        dist.recv(part, other)
    for sending in sends:
        sending.wait()
    return [tensor, *parts]


@wrong(ex.ring_all_reduce, "3 ranks, 12 elements: the sums are right, but rank 0 sent 24 elements")
def test_everything_to_everybody(tensor):
    tensor.copy_(sum(exchanged(tensor)))


@wrong(ex.ring_all_reduce, "returned the sums, but `tensor` holds other values")
def test_returns_them(tensor):
    return sum(exchanged(tensor))


@wrong(ex.ring_all_reduce, "`tensor` holds what it held before")
def test_exchanges_the_memory(tensor):
    tensor.data = sum(exchanged(tensor))


@wrong(ex.ring_all_reduce, "rank 0 sent 24 elements")
def test_everything_to_rank_0_and_back(tensor):
    for other in range(1, dist.get_world_size()):
        if dist.get_rank() == 0:
            received = torch.empty_like(tensor)
            dist.recv(received, other)
            tensor += received
        elif dist.get_rank() == other:
            dist.send(tensor, 0)
    for other in range(1, dist.get_world_size()):
        if dist.get_rank() == 0:
            dist.send(tensor, other)
        elif dist.get_rank() == other:
            dist.recv(tensor, 0)


@wrong(ex.ring_all_reduce, "3 ranks, 12 elements: in rank 0, element 0 holds")
def test_right_for_two(tensor):
    received, rank, n = torch.empty_like(tensor), dist.get_rank(), dist.get_world_size()
    sending = dist.isend(tensor.clone(), (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    sending.wait()
    tensor += received


@wrong(ex.ring_all_reduce, "it called `all_reduce`")
def test_leaves_it_to_torch(tensor):
    dist.all_reduce(tensor)


@wrong(ex.ring_all_reduce, "it called `all_reduce`")
def test_leaves_it_to_functional_collectives(tensor):
    from torch.distributed import _functional_collectives as functional

    tensor.copy_(functional.all_reduce(tensor, "sum", dist.group.WORLD))


@wrong(ex.ring_all_reduce, "it called `all_gather")
def test_gathers_objects(tensor):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, tensor)
    tensor.copy_(sum(everything))


@wrong(ex.ring_all_reduce, "the sums are right, but rank 0 sent 0 elements")
def test_through_a_store(tensor):
    import pickle

    store = dist.distributed_c10d._get_default_store()
    store.set(f"{len(tensor)}-{dist.get_rank()}", pickle.dumps(tensor.tolist()))
    rows = [pickle.loads(store.get(f"{len(tensor)}-{rank}")) for rank in range(dist.get_world_size())]
    tensor.copy_(torch.tensor(rows, dtype=tensor.dtype).sum(0))


@wrong(ex.ring_all_reduce, "was sent 96 bytes where it expected 16")
def test_too_long(tensor):
    sending = dist.isend(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    dist.recv(torch.empty(2, dtype=tensor.dtype), (dist.get_rank() - 1) % dist.get_world_size())
    sending.wait()


@wrong(ex.ring_all_reduce, "in its own dtype")
def test_in_double(tensor):
    twice = tensor.double()
    ex.ring_all_reduce.answer(twice)
    tensor.copy_(twice)


@wrong(ex.ring_all_reduce, "another dtype is another way")
def test_in_single(tensor):
    half = tensor.float()
    ex.ring_all_reduce.answer(half)
    tensor.copy_(half)


@wrong(ex.ring_all_reduce, "as long as the chunk that is sent, and of its dtype")
def test_receives_into_another_dtype(tensor):
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(tensor, (rank + 1) % n)
    dist.recv(torch.empty(len(tensor)), (rank - 1) % n)
    sending.wait()


@wrong(ex.ring_all_reduce, "values that belong to other elements, or to none")
def test_zeros(tensor):
    tensor.zero_()


@right(ex.ring_all_reduce)
def test_in_batches(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.nn.functional.pad(tensor, (0, -len(tensor) % n)).chunk(n))  # padded
    for step in range(2 * (n - 1)):
        place = (rank - step - 1) % n
        give, take = chunks[(rank - step) % n].clone(), torch.empty_like(chunks[place])
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, give, (rank + 1) % n),
                                            dist.P2POp(dist.irecv, take, (rank - 1) % n)]):
            work.wait()
        chunks[place] = chunks[place] + take if step < n - 1 else take
    tensor.copy_(torch.cat(chunks)[:len(tensor)])


@right(ex.ring_all_reduce)
def test_even_ranks_send_first_and_the_other_way_round(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        give, take = chunks[(rank + step) % n], chunks[(rank + step + 1) % n]
        received = torch.empty_like(take)
        if rank % 2 == 0:
            dist.send(give, (rank - 1) % n)
        dist.recv(received, (rank + 1) % n)
        if rank % 2:
            dist.send(give, (rank - 1) % n)
        take[:] = take + received if step < n - 1 else received


@right(ex.ring_all_reduce)
def test_chunks_straight_to_who_adds_them_up(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, others = tensor.tensor_split(n), [(dist.get_rank() + step) % n for step in range(1, n)]
    parts = [torch.empty_like(chunks[rank]) for _ in others]
    works = [dist.isend(chunks[other].clone(), other) for other in others]
    works += [dist.irecv(part, other) for other, part in zip(others, parts, strict=True)]
    for work in works:
        work.wait()
    chunks[rank].add_(sum(parts))
    works = [dist.isend(chunks[rank], other) for other in others] + [dist.irecv(chunks[one], one) for one in others]
    for work in works:
        work.wait()


def test_a_loop_without_end_is_ended_and_the_others_are_said_to_have_returned(monkeypatch):
    monkeypatch.setattr(type(ex.ring_all_reduce), "timeout", 2)

    def ring_all_reduce(tensor):
        while dist.get_rank() == 1:
            time.sleep(0.01)

    feedback = ex.ring_all_reduce.check(ring_all_reduce)
    assert "rank 0 had returned" in repr(feedback) and "rank 1 was at" in repr(feedback), feedback


zeros = "            if parameter.grad is None:\n                parameter.grad = torch.zeros_like(parameter)\n"
divide = "            parameter.grad /= dist.get_world_size()"
reduce = "            dist.all_reduce(parameter.grad)\n"
late = "            work = dist.all_reduce(parameter.grad, async_op=True)\n"

test_average_gradients = edits(
    ex.average_gradients,
    (divide, "            pass", "which is the sum"),
    ("dist.get_world_size()", "2", "3 ranks"),
    ("if parameter.requires_grad:", "if parameter.grad is not None:", "Rank 1 has no gradient for `1.weight`"),
    (zeros, "", "Error"),
    (reduce, "", "it called no collective"),
    ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad.clone())",
     "2 ranks, float32: rank 0's gradient"),
    ("dist.all_reduce(parameter.grad)", "dist.reduce(parameter.grad, 0)", "rank 1's gradient of `0.weight`"),
    ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, async_op=True)", "never waited for it"),
    ("dist.all_reduce(parameter.grad)", "dist.broadcast(parameter.grad, 0)", "rank 0's gradient of `0.weight`"),
    ((("model.parameters()", "model.named_parameters()"), ("for parameter in", "for name, parameter in"),
      ("if parameter.requires_grad", "if name.endswith('weight')")), "`2.bias` is 8, 8.125 …, as before"),
    ("if parameter.requires_grad:", "if True:", "`0.bias` is frozen, and its gradient has changed"),
    ("if parameter.requires_grad:", "if parameter.requires_grad or parameter.grad is None:", "`1.bias` is frozen"),
    ("parameter.grad", "parameter.data", "the weights have changed, `0.weight` for example"),
    (zeros, zeros + "            parameter.grad = parameter.grad.half().to(parameter.dtype)\n",
     "which has lost its digits"),
    (zeros, zeros + "            parameter.grad = parameter.grad.float()\n", "given bfloat16, None in rank 0"),
    (divide, divide + "\n    dist.destroy_process_group()", "it had destroyed the process group"),
    (reduce + divide, late + divide + "\n            work.wait()", "before an asynchronous `all_reduce` is waited for"),
)


@wrong(ex.average_gradients, "what decides whether a parameter is skipped, and in which order they come")
def test_a_bucket_of_what_this_rank_has(model):
    import torch
    import torch.distributed as dist

    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    dist.all_reduce(torch.cat([grad.flatten() for grad in grads]))


@wrong(ex.average_gradients, "caught the error of a collective")
def test_catches_what_went_wrong(model):
    import torch.distributed as dist

    for parameter in model.parameters():
        try:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        except Exception:
            pass


@wrong(ex.average_gradients, "as before; your function returned a list")
def test_returns_the_means(model):
    means = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            mean = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            dist.all_reduce(mean)
            means.append(mean / dist.get_world_size())
    return means


@wrong(ex.average_gradients, "bfloat16, None in rank 0")
def test_rank_0_decides_who_has_a_gradient(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    has = [[parameter.grad is not None for parameter in trained]]
    dist.broadcast_object_list(has, 0)
    for parameter, there in zip(trained, has[0], strict=True):
        if there:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@right(ex.average_gradients)
def test_one_flat_bucket(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = part.view_as(p).clone()


@right(ex.average_gradients)
def test_all_at_once_then_waits(model):
    works = []
    for parameter in reversed([one for one in model.parameters() if one.requires_grad]):
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in works:
        work.get_future().wait()


@right(ex.average_gradients)
def test_divides_when_it_is_done(model):
    works = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            work = dist.all_reduce(parameter.grad, async_op=True)
            works.append(work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size())))
    torch.futures.wait_all(works)


@right(ex.average_gradients)
def test_waits_with_a_limit(model):
    from datetime import timedelta

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad, async_op=True).wait(timeout=timedelta(minutes=1))
            parameter.grad /= dist.get_world_size()



@right(ex.average_gradients)
def test_asks_until_it_is_done(model):
    flat = torch.zeros(sum(one.numel() for one in model.parameters() if one.requires_grad), dtype=model[1].weight.dtype)
    places, parts = [one for one in model.parameters() if one.requires_grad], []
    for parameter, part in zip(places, flat.split([one.numel() for one in places]), strict=True):
        part += 0 if parameter.grad is None else parameter.grad.flatten()
        parts.append((dist.all_reduce(part, async_op=True), part, parameter))
    for work, part, parameter in parts:
        while not work.is_completed():
            pass
        parameter.grad = part.view_as(parameter) / dist.get_world_size()


@right(ex.average_gradients)
def test_gathers_them_as_objects(model):
    has = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, has)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            there = [gradients[name] for gradients in everyones if gradients[name] is not None]
            parameter.grad = (sum(there) / len(everyones)).to(parameter.dtype)


@right(ex.average_gradients)
def test_functional_collectives(model):
    from torch.distributed import _functional_collectives as functional

    for parameter in model.parameters():
        if parameter.requires_grad:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = functional.all_reduce(own, "avg", dist.group.WORLD).clone()


no_sync = "with contextlib.nullcontext() if last else model.no_sync():"
loop = "    for number, (x, y) in enumerate(batches, start=1):\n"
by_hand = "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
step = "    optimizer.step()"

test_accumulate = edits(
    ex.accumulate,
    ("loss.backward()", "pass", "moved nothing: there were no gradients"),
    ("nullcontext() if last else model.no_sync()", "nullcontext()",
     "4 micro-batches: the gradients were all-reduced 4 times"),
    (((no_sync, "loss = loss_fn(model(x), y) / len(batches)\n        " + no_sync),
      ("            loss = loss_fn(model(x), y) / len(batches)\n            ", "            ")),
     "all-reduced 4 times: 4 forwards were outside `no_sync`"),
    ("nullcontext() if last else model.no_sync()", "nullcontext() if number > 2 else model.no_sync()",
     "all-reduced 2 times"),
    ("contextlib.nullcontext() if last else ", "", "never all-reduced; each rank stepped on its own"),
    (" / len(batches)", "", "4 micro-batches: rank 0's step is 4 times as long as it should be"),
    (" / len(batches)", " / len(batches) / 3", "0.333 times as long"),
    (" / len(batches)", " / sum(len(x) for x, y in batches) * len(x)", "counts the same, whatever its size"),
    ("last = number == len(batches)", "last = number == 1", "outside `no_sync` has to be the last"),
    (step, step + "\n    batches.clear()", "the list `batches` has changed"),
    ((("    optimizer.zero_grad()\n", ""), (loop, loop + "        optimizer.zero_grad()\n")),
     "only the last micro-batch"),
    ("    optimizer.zero_grad()\n", "", "the gradients from before were still there"),
    ((("    optimizer.zero_grad()\n", ""), (step, step + "\n    optimizer.zero_grad()")),
     "from before were still there"),
    (step, "    optimizer.zero_grad()\n" + step, "moved nothing: there were no gradients"),
    (step, "", "rank 0's optimizer stepped 0 times"),
    (step, "        optimizer.step()", "rank 0's optimizer stepped 4 times"),
    (((step, "    import torch.distributed as dist\n    if dist.get_rank() == 0:\n        optimizer.step()"),),
     "rank 1's optimizer stepped 0 times"),
    ((("last = number == len(batches)", "last = number == 4"), ("/ len(batches)", "/ 4")), "1 micro-batch"),
    ("model(x)", "model.module(x)", "never all-reduced: `model.module` was called"),
    (step, "    import torch\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" + step, "clips it"),
    (step, "    import torch\n    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)\n" + step,
     "leads elsewhere"),
    (((no_sync, "with model.no_sync():"), (step, "    import torch.distributed as dist\n" + by_hand + step)),
     "rank 0's step is 3 times as long as it should be"),
    ("/ len(batches)", "/ (len(batches) * 3)", "DDP's all-reduce has already made a mean over the ranks"),
    ("/ len(batches)", "/ len(batches) ** 2", "is divided once"),
    ("    optimizer.step()", "    for one in model.parameters():\n        torch.distributed.all_reduce(one.grad)\n"
     "    optimizer.step()", "outside `no_sync`, DDP has averaged already"),
    (step, "        if number == len(batches) - 1:\n            optimizer.step()",
     "does a `backward` come after `step`?"),
)


def backward_all(model, batches, loss_fn):
    """Without a word to other ranks."""
    with model.no_sync():
        for x, y in batches:
            (loss_fn(model(x), y) / len(batches)).backward()


@wrong(ex.accumulate, "4 micro-batches: the step is right, but rank 0 held 2.9 times the memory")
def test_one_backward_over_the_sum(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    (sum(loss_fn(model(x), y) for x, y in batches) / len(batches)).backward()
    optimizer.step()


@wrong(ex.accumulate, "rank 0 held 1.6 times the memory")
def test_pairs_of_micro_batches(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    with model.no_sync():
        for place in range(0, len(batches) - 2, 2):
            (sum(loss_fn(model(x), y) for x, y in batches[place:place + 2]) / len(batches)).backward()
    (sum(loss_fn(model(x), y) for x, y in batches[-2:]) / len(batches)).backward()
    optimizer.step()


@wrong(ex.accumulate, "the gradients were all-reduced 4 times")
def test_functional_collectives_each_time(model, optimizer, batches, loss_fn):
    from torch.distributed import _functional_collectives as functional

    means = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for x, y in batches:
        optimizer.zero_grad()
        backward_all(model, [(x, y)], loss_fn)
        for mean, parameter in zip(means, model.parameters(), strict=True):
            mean += functional.all_reduce(parameter.grad, "avg", dist.group.WORLD) / len(batches)
    for mean, parameter in zip(means, model.parameters(), strict=True):
        parameter.grad = mean
    optimizer.step()


@wrong(ex.accumulate, "never all-reduced, and yet each rank has the mean")
def test_gradients_through_a_store(model, optimizer, batches, loss_fn):
    import pickle

    store, ranks = dist.distributed_c10d._get_default_store(), range(dist.get_world_size())
    optimizer.zero_grad()
    backward_all(model, batches, loss_fn)
    store.set(f"{len(batches)}-{dist.get_rank()}", pickle.dumps([one.grad for one in model.parameters()]))
    everyones = [pickle.loads(store.get(f"{len(batches)}-{rank}")) for rank in ranks]
    for parameter, *gradients in zip(model.parameters(), *everyones, strict=True):
        parameter.grad = sum(gradients) / len(gradients)
    optimizer.step()


@wrong(ex.accumulate, "rank 1's step leads elsewhere")
def test_rank_1_alone_is_wrong(model, optimizer, batches, loss_fn):
    type(ex.accumulate).answer(model, optimizer, batches, loss_fn)
    if dist.get_rank() == 1:
        next(model.parameters()).data.add_(1)


@right(ex.accumulate)
def test_by_hand_after_no_sync(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    backward_all(model, batches, loss_fn)
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    parts = (flat / dist.get_world_size()).split([parameter.numel() for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
    dist.all_reduce(torch.zeros(1))  # as one does for a loss to be printed
    optimizer.step()


@right(ex.accumulate)
def test_the_model_inside_until_the_last(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    *first, (x, y) = batches
    for inputs, targets in first:
        loss_fn(model.module(inputs), targets).backward()
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        parameter.grad /= len(batches)
    optimizer.step()


@right(ex.accumulate)
def test_the_switch_behind_no_sync(model, optimizer, batches, loss_fn):
    model.zero_grad(set_to_none=False)
    for number, (x, y) in enumerate(batches, start=1):
        model.require_backward_grad_sync = number == len(batches)
        (loss_fn(model(x), y) / len(batches)).backward()
    optimizer.step()


again = "            net[0].requires_grad_(True)\n            model = DDP(net)"

test_fine_tune = edits(
    ex.fine_tune,
    ("net[0].requires_grad_(False)\n    model = DDP(net)", "model = DDP(net)\n    net[0].requires_grad_(False)",
     "DDP waits for gradients"),
    (again, "            net[0].requires_grad_(True)", "`0.weight` differs between rank 0 and rank 1"),
    (again, "            pass", "`0.weight` is what it was at the beginning"),
    ("SGD(net.parameters()", "SGD([one for one in net.parameters() if one.requires_grad]",
     "Does the optimizer know of it?"),
    ("number == 3", "number == 2", "`net[0]` was frozen for 2 batches, not for 3"),
    ("number == 3", "number == 4", "`net[0]` was frozen for 4 batches, not for 3"),
    ("net[0].requires_grad_(False)", "pass", "`net[0]` was frozen for 0 batches, not for 3"),
    ("        optimizer.zero_grad()\n", "", "`optimizer.zero_grad()`, in each step"),
    ("loss_fn(model(x), y)", "(torch.distributed.get_world_size() * loss_fn(model(x), y))", "which is no mean yet"),
    (((again, "            net[0].requires_grad_(True)"),
      ("        optimizer.step()", "        optimizer.step()\n    for parameter in net.parameters():\n"
                                  "        torch.distributed.broadcast(parameter.data, 0)")),
     "the gradients, in each step"),
    (((again, "            net[0].requires_grad_(True)"),
      ("        optimizer.step()", "        if number > 2:\n"
       "            torch.distributed.broadcast(net[0].weight.grad, 0)\n        optimizer.step()")),
     "`0.bias` differs between rank 0 and rank 1"),
    ("lr=0.1", "lr=0.01", "is the same in all ranks, but not"),
    ("loss_fn(model(x), y)", "loss_fn(model.module(x), y)", "differs between rank 0 and rank 1"),
    ("        optimizer.step()", "        pass", "`0.weight` is what it was at the beginning"),
    ("            model = DDP(net)", "            model = DDP(net) if torch.distributed.get_rank() else model",
     "waited in vain"),
    ("            net[0].requires_grad_(True)", "            net[0].weight.requires_grad_(True)",
     "`0.bias` is what it was"),
    ("in enumerate(batches", "in enumerate(batches[:4]", "is there a step for each batch?"),
)


@right(ex.fine_tune)
def test_wrapped_unfrozen_and_the_rest_left_out_of_the_step(net, batches, loss_fn):
    model = torch.nn.parallel.DistributedDataParallel(net)
    for number, (x, y) in enumerate(batches):
        model.zero_grad()
        loss_fn(model(x), y).backward()
        trained = net if number >= 3 else net[2]
        torch.optim.SGD(trained.parameters(), lr=0.1).step()


@right(ex.fine_tune)
def test_the_late_ones_averaged_by_hand(net, batches, loss_fn):
    net[0].requires_grad_(False)
    model, optimizer = torch.nn.parallel.DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches):
        net[0].requires_grad_(number >= 3)
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        for parameter in net[0].parameters() if number >= 3 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
