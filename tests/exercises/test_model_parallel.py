"""Model parallelism: right answers in other styles, and values that are right and cost too much."""

import torch
import torch.distributed as dist

from lessons.model_parallel import exercises as ex
from lessons.model_parallel import schedules
from tests.answers import right, wrong


@right(ex.one_f_one_b)
def test_by_asking_what_is_held(rank, ranks, micro_batches):
    todo, forward = [], 0
    for backward in range(micro_batches):
        while forward < micro_batches and forward - backward < ranks - rank:
            todo.append(["F", forward])
            forward += 1
        todo.append(["B", backward])
    return todo


@wrong(ex.one_f_one_b, "rank 0's list holds B0")
def test_writes_as_the_lesson_prints_them(rank, ranks, micro_batches):
    return [f"{kind}{i}" for i in range(micro_batches) for kind in "FB"]


@wrong(ex.one_f_one_b, "rank 0 does F in the order [0, 1, 3, 2, 4, 5, 6, 7], rank 1 in [0, 1, 2, 3")
def test_sends_one_micro_batch_before_another(rank, ranks, micro_batches):
    """The clock does not see it, and the lesson's loop runs it: rank 1 takes micro-batch 3 for 2."""
    todo = schedules.one_f_one_b(rank, ranks, micro_batches)
    if rank == 0 and ranks == 4 and micro_batches == 8:
        todo[2:4] = reversed(todo[2:4])
    return todo


@right(ex.one_f_one_b)
def test_begins_with_the_last_micro_batch(rank, ranks, micro_batches):
    return [(kind, micro_batches - 1 - i) for kind, i in schedules.one_f_one_b(rank, ranks, micro_batches)]


@wrong(ex.one_f_one_b, "rank 0's list holds ('b', 0)")
def test_writes_small_letters(rank, ranks, micro_batches):
    return [(kind.lower(), i) for kind, i in schedules.one_f_one_b(rank, ranks, micro_batches)]


@wrong(ex.one_f_one_b, "rank 0's list holds ()")
def test_ends_with_an_empty_step(rank, ranks, micro_batches):
    return [*schedules.one_f_one_b(rank, ranks, micro_batches), ()]


@wrong(ex.one_f_one_b, "without the stage")
def test_names_the_stage(rank, ranks, micro_batches):
    return [(*step, rank) for step in schedules.one_f_one_b(rank, ranks, micro_batches)]


@wrong(ex.column_parallel, "It is whole in each rank, and needs no sum")
def test_takes_torchs_all_reduce_for_the_gather(x, weight, bias, loss_of):
    from torch.distributed import _functional_collectives as functional

    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.nn.functional.linear(x, weight, bias)
    parts = [torch.zeros_like(mine) for _ in range(n)]
    parts[rank] = mine
    output = functional.all_reduce(torch.cat(parts, 1), "sum", dist.group.WORLD)
    loss_of(output).backward()
    dist.all_reduce(x.grad)
    return output


@wrong(ex.mean_gradient, "`xs` or `ys`")
def test_empties_the_lists(model, loss_fn, xs, ys):
    samples = sum(map(len, xs))
    while xs:
        x = xs.pop()
        (loss_fn(model(x), ys.pop()) * len(x) / samples).backward()


@wrong(ex.mean_gradient, "the weights")
def test_steps_as_well(model, loss_fn, xs, ys):
    samples = sum(map(len, xs))
    for x, y in zip(xs, ys, strict=True):
        (loss_fn(model(x), y) * len(x) / samples).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@wrong(ex.column_parallel, "bytes sent")
def test_gathers_the_weights(x, weight, bias, loss_of):
    n, rank = dist.get_world_size(), dist.get_rank()
    weights = [torch.empty_like(weight) for _ in range(n)]
    biases = [torch.empty_like(bias) for _ in range(n)]
    dist.all_gather(weights, weight.detach())
    dist.all_gather(biases, bias.detach())
    whole, all_bias = torch.cat(weights).requires_grad_(), torch.cat(biases).requires_grad_()
    output = torch.nn.functional.linear(x, whole, all_bias)
    loss_of(output).backward()
    weight.grad, bias.grad = whole.grad.chunk(n)[rank], all_bias.grad.chunk(n)[rank]
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


@right(ex.mean_gradient)
def test_one_sample_after_the_other(model, loss_fn, xs, ys):
    samples = sum(map(len, xs))
    for x, y in zip(xs, ys, strict=True):
        for one, target in zip(x.split(1), y.split(1), strict=True):
            (loss_fn(model(one), target) / samples).backward()


@right(ex.mean_gradient)
def test_scaled_afterwards(model, loss_fn, xs, ys):
    samples = 0
    for x, y in zip(xs, ys, strict=True):
        samples += len(x)
        (loss_fn(model(x), y) * len(x)).backward()
    for parameter in model.parameters():
        parameter.grad /= samples
