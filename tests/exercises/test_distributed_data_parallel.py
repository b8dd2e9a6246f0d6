"""DistributedDataParallel: right answers in other styles, and wrong ones that no row of a table can be."""

import contextlib
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from lessons.distributed_data_parallel import exercises as ex
from tests.answers import right, wrong


@wrong(ex.ring_all_reduce, "A store, a file or another dtype is another way")
def test_through_a_store(tensor):
    import pickle

    store = dist.distributed_c10d._get_default_store()
    store.set(f"{len(tensor)}-{dist.get_rank()}", pickle.dumps(tensor.tolist()))
    rows = [pickle.loads(store.get(f"{len(tensor)}-{rank}")) for rank in range(dist.get_world_size())]
    tensor.copy_(torch.tensor(rows, dtype=tensor.dtype).sum(0))


@wrong(ex.ring_all_reduce, "collectives called: ['all_reduce']")
def test_leaves_it_to_functional_collectives(tensor):
    from torch.distributed import _functional_collectives as functional

    tensor.copy_(functional.all_reduce(tensor, "sum", dist.group.WORLD))


@wrong(ex.ring_all_reduce, "was sent 96 bytes where it expected 16")
def test_too_long(tensor):
    sending = dist.isend(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    dist.recv(torch.empty(2, dtype=tensor.dtype), (dist.get_rank() - 1) % dist.get_world_size())
    sending.wait()


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
def test_chunks_straight_to_who_adds_them_up(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, others = tensor.tensor_split(n), [(dist.get_rank() + step) % n for step in range(1, n)]
    parts = [torch.empty_like(chunks[rank]) for _ in others]
    works = [dist.isend(chunks[other].clone(), other) for other in others]
    works += [dist.irecv(part, other) for other, part in zip(others, parts, strict=True)]
    for work in works:
        work.wait()
    chunks[rank].add_(sum(parts))
    works = [dist.isend(chunks[rank], other) for other in others]
    works += [dist.irecv(chunks[other], other) for other in others]
    for work in works:
        work.wait()


@pytest.mark.long
def test_a_loop_without_end_is_ended_and_the_others_are_said_to_have_returned(monkeypatch):
    monkeypatch.setattr(type(ex.ring_all_reduce), "timeout", 2)

    def ring_all_reduce(tensor):
        while dist.get_rank() == 1:
            time.sleep(0.01)

    feedback = ex.ring_all_reduce.check(ring_all_reduce)
    assert "rank 0 had returned" in repr(feedback) and "rank 1 was at" in repr(feedback), feedback


@wrong(ex.average_gradients, "caught the error of a collective")
def test_catches_what_went_wrong(model):
    import torch.distributed as dist

    for parameter in model.parameters():
        try:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        except Exception:
            pass


def trained(model):
    """The parameters that are not frozen, each with a gradient, of zeros where there was none."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            yield parameter


@right(ex.average_gradients)
def test_one_flat_bucket(model):
    parameters = list(trained(model))
    flat = torch.cat([one.grad.flatten() for one in parameters])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for one, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        one.grad = part.view_as(one).clone()


@right(ex.average_gradients)
def test_divides_when_it_is_done(model):
    works = []
    for parameter in trained(model):
        work = dist.all_reduce(parameter.grad, async_op=True)
        works.append(work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size())))
    torch.futures.wait_all(works)


@right(ex.average_gradients)
def test_rank_0_receives_and_sends(model):
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    for parameter in trained(model):
        if rank > 0:
            dist.send(parameter.grad, 0)
            dist.recv(parameter.grad, 0)
        else:
            for other in others:
                received = torch.empty_like(parameter.grad)
                dist.recv(received, other)
                parameter.grad += received
            parameter.grad /= len(others) + 1
            for other in others:
                dist.send(parameter.grad, other)


@wrong(ex.average_gradients, "What decides it must be the same in all ranks")
def test_only_one_rank_calls(model):
    for parameter in trained(model):
        if dist.get_rank() == 0:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@right(ex.average_gradients)
def test_functional_collectives(model):
    from torch.distributed import _functional_collectives as functional

    for parameter in trained(model):
        parameter.grad = functional.all_reduce(parameter.grad, "avg", dist.group.WORLD).clone()


@wrong(ex.accumulate, "4 micro-batches: in rank 0, micro-batches held at once: 4")
def test_one_backward_over_the_sum(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    (sum(loss_fn(model(x), y) for x, y in batches) / len(batches)).backward()
    optimizer.step()


@wrong(ex.accumulate, "batches taken away: 4")
def test_frees_each_micro_batch(model, optimizer, batches, loss_fn):
    type(ex.accumulate).answer(model, optimizer, batches, loss_fn)
    batches[:] = [None] * len(batches)


@wrong(ex.accumulate, "`afterwards`['the next backward averages'] is False")
def test_leaves_averaging_off(model, optimizer, batches, loss_fn):
    type(ex.accumulate).answer(model, optimizer, batches, loss_fn)
    model.require_backward_grad_sync = False


def sums_in_no_sync(model, optimizer, batches, loss_fn):
    """One optimizer step with the sum over the micro-batches, averaged over the ranks."""
    optimizer.zero_grad()
    for number, (x, y) in enumerate(batches, start=1):
        with contextlib.nullcontext() if number == len(batches) else model.no_sync():
            loss_fn(model(x), y).backward()
    optimizer.step()


@wrong(ex.accumulate, "`next step`")
def test_leaves_a_hook_in_the_optimizer(model, optimizer, batches, loss_fn):
    def divide(*_):
        for parameter in model.parameters():
            parameter.grad /= len(batches)

    optimizer.register_step_pre_hook(divide)
    sums_in_no_sync(model, optimizer, batches, loss_fn)


@wrong(ex.accumulate, "can only be called once")
def test_registers_a_communication_hook_for_each_step(model, optimizer, batches, loss_fn):
    def divide(state, bucket):
        bucket.buffer().div_(len(batches))
        return default_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, divide)
    sums_in_no_sync(model, optimizer, batches, loss_fn)


@right(ex.accumulate)
def test_removes_its_hook(model, optimizer, batches, loss_fn):
    def divide(*_):
        for parameter in model.parameters():
            parameter.grad /= len(batches)

    hook = optimizer.register_step_pre_hook(divide)
    sums_in_no_sync(model, optimizer, batches, loss_fn)
    hook.remove()


@right(ex.accumulate)
def test_forward_alone_in_no_sync(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(batches, start=1):
        model.require_backward_grad_sync = number == len(batches)
        loss = loss_fn(model(x), y) / len(batches)
        model.require_backward_grad_sync = True
        loss.backward()
    optimizer.step()


@right(ex.accumulate)
def test_by_hand_after_no_sync(model, optimizer, batches, loss_fn):
    optimizer.zero_grad()
    with model.no_sync():
        for x, y in batches:
            (loss_fn(model(x), y) / len(batches)).backward()
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


@wrong(ex.fine_tune, "batches taken away: 5")
def test_takes_the_batches(net, batches, loss_fn):
    type(ex.fine_tune).answer(net, list(batches), loss_fn)
    batches.clear()


@right(ex.fine_tune)
def test_wrapped_unfrozen_and_the_rest_left_out_of_the_step(net, batches, loss_fn):
    model = torch.nn.parallel.DistributedDataParallel(net)
    for number, (x, y) in enumerate(batches):
        model.zero_grad()
        loss_fn(model(x), y).backward()
        trained = net if number >= 3 else net[2]
        torch.optim.SGD(trained.parameters(), lr=0.1).step()
