"""Model parallelism: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
one_f_one_b      GPipe's order; a warm-up too short or too long; lists that wait for ever; lists of lists are right
column_parallel  x's gradient of own rows only; summed twice; weights gathered; torch's own collectives are right
choose_mesh      copies forgotten; the first that fits; too many tensor ranks; asked in another order is right
mean_gradient    sum, mean of means; everything at once; right with one backward per micro-batch, scaled afterwards
"""

import torch
import torch.distributed as dist

from lessons.model_parallel import exercises as ex
from tests.answers import edits, right, wrong

test_one_f_one_b = edits(
    ex.one_f_one_b,
    ("ranks - 1 - rank", "ranks - rank", "held"),
    ("min(micro_batches, ranks - 1 - rank)", "max(0, min(micro_batches, ranks - 2 - rank))", "it takes"),
    ("ranks - 1 - rank", "micro_batches", "rank 1 held 2 micro-batches"),
    ("min(micro_batches, ranks - 1 - rank)", "ranks - 1 - rank", "4 stages, 2 micro-batches: rank 0's list holds"),
    ('("F", warm + i), ("B", i)]', '("B", i), ("F", warm + i)]', "waits for ever"),
    ("for i in range(micro_batches - warm, micro_batches)]", "for i in range(micro_batches - warm, micro_batches - 1)]",
     "lacks ('B', 1)"),
    ("for i in range(micro_batches - warm, micro_batches)]",
     "for i in reversed(range(micro_batches - warm, micro_batches))]", "4 stages, 8 micro-batches: it takes 37 units"),
    ("return todo + [", "todo += [", "what your function returns, and its type"),
)


@right(ex.one_f_one_b)
def test_by_asking_what_is_held(rank, ranks, micro_batches):
    todo, forward = [], 0
    for backward in range(micro_batches):
        while forward < micro_batches and forward - backward < ranks - rank:
            todo.append(["F", forward])
            forward += 1
        todo.append(["B", backward])
    return todo


test_column_parallel = edits(
    ex.column_parallel,
    ("            dist.all_reduce(gradient)\n            return gradient", "            return gradient",
     "`x.grad` holds only what came through its own rows"),
    ("            dist.all_reduce(gradient)\n            return gradient",
     "            dist.all_reduce(gradient)\n            return gradient / n", "the sum, not the mean"),
    ("return gradient.chunk(n, 1)[rank]", "return gradient.chunk(n, 1)[0]",
     "`x.grad` is not that of the whole layer"),
    ("    loss_of(output).backward()", "    pass", "is `loss_of(output).backward()` called"),
    ("Copy.apply(x)", "Copy.apply(x.detach().requires_grad_())", "is it `x` itself that the layer is given"),
    ("torch.cat(parts, 1)", "torch.cat(parts, 0)", "`loss_of(output).backward()`"),
    ("Copy.apply(x), weight, bias", "Copy.apply(x), weight", "is not that of the whole layer"),
    ("return gradient.chunk(n, 1)[rank]",
     "gradient = gradient.clone(); dist.all_reduce(gradient); return gradient.chunk(n, 1)[rank]", "times too large"),
    ("    loss_of(output).backward()\n", "", "has no gradient"),
    ("    return output", "", "rank 0 returned None"),
    ("    return output", "    dist.all_reduce(x.grad)\n    return output", "`x.grad` is 2 times too large"),
)


@wrong(ex.column_parallel, "numbers into collectives")
def test_gathers_the_weights(x, weight, bias, loss_of):
    n, rank = dist.get_world_size(), dist.get_rank()
    weights, biases = ([torch.empty_like(one) for _ in range(n)] for one in (weight, bias))
    dist.all_gather(weights, weight.detach())
    dist.all_gather(biases, bias.detach())
    whole, all_bias = torch.cat(weights).requires_grad_(), torch.cat(biases).requires_grad_()
    output = torch.nn.functional.linear(x, whole, all_bias)
    loss_of(output).backward()
    weight.grad, bias.grad = whole.grad.chunk(n)[rank], all_bias.grad.chunk(n)[rank]
    return output


@wrong(ex.column_parallel, "has no gradient")
def test_gathers_without_autograd(x, weight, bias, loss_of):
    mine = torch.nn.functional.linear(x, weight, bias)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach())
    output = torch.cat(parts, 1).requires_grad_()
    loss_of(output).backward()
    return output


@wrong(ex.column_parallel, "A collective on tensors leaves no trace")
def test_gathers_as_if_collectives_had_a_gradient(x, weight, bias, loss_of):
    mine = torch.nn.functional.linear(x, weight, bias)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    output = torch.cat(parts, 1)
    loss_of(output).backward()
    return output


@wrong(ex.column_parallel, "numbers into collectives")
def test_sums_the_gradient_of_the_whole_output(x, weight, bias, loss_of):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.nn.functional.linear(x, weight, bias).detach()
    parts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(parts, mine)
    output = torch.cat(parts, 1).requires_grad_()
    loss_of(output).backward()
    dist.all_reduce(output.grad)
    slope = (output.grad / n).chunk(n, 1)[rank]
    weight.grad, bias.grad, x.grad = slope.T @ x.detach(), slope.sum(0), slope @ weight.detach()
    dist.all_reduce(x.grad)
    return output


@right(ex.column_parallel)
def test_all_by_hand(x, weight, bias, loss_of):
    n, rank = dist.get_world_size(), dist.get_rank()
    with torch.no_grad():
        mine = x @ weight.T + bias
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine)
    output = torch.cat(parts, 1).requires_grad_()
    loss_of(output).backward()
    slope = output.grad.chunk(n, 1)[rank]
    weight.grad, bias.grad, x.grad = slope.T @ x.detach(), slope.sum(0), slope @ weight.detach()
    dist.all_reduce(x.grad)
    return output


@right(ex.column_parallel)
def test_each_rank_broadcasts_its_part(x, weight, bias, loss_of):
    mine = torch.nn.functional.linear(x, weight, bias)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    parts[dist.get_rank()] = mine.detach().clone()
    for rank, part in enumerate(parts):
        dist.broadcast(part, src=rank)
    parts[dist.get_rank()] = mine
    output = torch.cat(parts, 1)
    loss_of(output).backward()
    dist.all_reduce(x.grad)
    return output


@right(ex.column_parallel)
def test_each_rank_sends_its_part_to_all_others(x, weight, bias, loss_of):
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.nn.functional.linear(x, weight, bias)
    parts = [torch.empty_like(mine) for _ in range(n)]
    sending = [dist.isend(mine.detach(), other) for other in range(n) if other != rank]
    for other in set(range(n)) - {rank}:
        dist.recv(parts[other], other)
    for one in sending:
        one.wait()
    parts[rank] = mine
    output = torch.cat(parts, 1)
    loss_of(output).backward()
    dist.all_reduce(x.grad)
    return output


test_choose_mesh = edits(
    ex.choose_mesh,
    ("range(1, 9)", "range(1, gpus + 1)", "is no mesh of"),
    ("range(1, 9)", "range(1, 8)", "it was never asked for"),
    ("range(1, 9)", "(1, 2, 4, 8)", "96 GPUs of 40 GiB"),
    ("for shards in range(1, gpus + 1):", "for shards in range(1, gpus):", "12 GPUs of 16 GiB: (4, 1, 3)"),
    ("for shards in range(1, gpus + 1):", "for shards in (1, 2, 4, 8, 16, 32, 64):", "it was never asked for"),
    ("if held <= limit:", "if True:", "does not fit in"),
    ("if held <= limit:", "if held < limit:", "64 GPUs of 73 GiB"),
    ("fitting[mesh] = sent", "fitting[mesh] = held", "which of those that fit sends least?"),
    ("min(fitting", "max(fitting", "GiB and sends"),
    ("min(fitting, key=fitting.get, default=None)", "min(fitting, key=fitting.get)", "ValueError"),
    ("default=None", "default=()", "`None`, not an empty tuple"),
    ("held, sent = ", "sent, held = ", "What a mesh holds comes first in its pair"),
    ("costs(*mesh)", "costs(*mesh[::-1])", "do you ask `costs("),
)


@right(ex.choose_mesh)
def test_in_another_order(gpus, costs, limit):
    import itertools

    best = None
    for mesh in itertools.product(range(gpus, 0, -1), repeat=2):
        if gpus % (mesh[0] * mesh[1]) == 0 and gpus // (mesh[0] * mesh[1]) <= 8:
            whole = [*mesh, gpus // (mesh[0] * mesh[1])]
            held, sent = costs(*whole)
            if held <= limit and (best is None or sent < best[0]):
                best = sent, whole
    return best and best[1]


test_mean_gradient = edits(
    ex.mean_gradient,
    ("/ samples", "/ (len(xs) * len(xs[0]))", "how many samples are there?"),
    (" * len(x) / samples)", ")", "8 equal ones: the gradient is not that of the whole batch: its norm is 8 times"),
    ("len(x) / samples", "1 / len(xs)", "the micro-batches are not equally large"),
    ("for x, y in zip(xs, ys, strict=True):", "for x, y in list(zip(xs, ys))[-1:]:", "is not that of the whole batch"),
    ("for x, y in zip(xs, ys, strict=True):", "for x, y in list(zip(xs, ys))[:-1]:", "its norm is"),
    (".backward()", "", "has none"),
    ("(loss_fn(model(x), y) * len(x) / samples).backward()",
     "loss = loss_fn(model(x), y) * len(x) / samples\n        loss.backward(retain_graph=True)",
     "times the memory of the largest micro-batch was held"),
    ("strict=True):\n", "strict=True):\n        model.zero_grad()\n", "is a gradient overwritten?"),
    ("len(x) / ", "1 / ", "each loss is a mean over its own samples already"),
)


@wrong(ex.mean_gradient, "times the memory of the largest micro-batch was held")
def test_all_at_once(model, loss_fn, xs, ys):
    loss_fn(model(torch.cat(xs)), torch.cat(ys)).backward()


@right(ex.mean_gradient)
def test_functional_which_holds_more_for_one(model, loss_fn, xs, ys):
    from torch.func import functional_call, grad

    weights, samples = {name: one.detach() for name, one in model.named_parameters()}, sum(map(len, xs))
    for x, y in zip(xs, ys, strict=True):
        found = grad(lambda weights, x, y: loss_fn(functional_call(model, weights, (x,)), y))(weights, x, y)
        for name, one in model.named_parameters():
            share = found[name] * (len(x) / samples)
            one.grad = share if one.grad is None else one.grad + share


@right(ex.mean_gradient)
def test_scaled_afterwards(model, loss_fn, xs, ys):
    samples = 0
    for x, y in zip(xs, ys, strict=True):
        samples += len(x)
        (loss_fn(model(x), y) * len(x)).backward()
    for parameter in model.parameters():
        parameter.grad /= samples


@right(ex.mean_gradient)
def test_by_the_function_grad(model, loss_fn, xs, ys):
    samples, parameters = sum(map(len, xs)), list(model.parameters())
    for x, y in zip(xs, ys, strict=True):
        found = torch.autograd.grad(loss_fn(model(x), y), parameters)
        for parameter, gradient in zip(parameters, found, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient * (len(x) / samples)
            else:
                parameter.grad.add_(gradient, alpha=len(x) / samples)


@wrong(ex.choose_mesh, "(8, 1, 1), which holds 39.0 GiB and sends 0")
def test_nothing_sent_is_taken_for_nothing_found(gpus, costs, limit):
    best = least = None
    for tensor in range(1, 9):
        for shards in (shards for shards in range(1, gpus + 1) if gpus % (tensor * shards) == 0):
            held, sent = costs(gpus // (tensor * shards), shards, tensor)
            if held <= limit and (not least or sent < least):
                best, least = (gpus // (tensor * shards), shards, tensor), sent
    return best
