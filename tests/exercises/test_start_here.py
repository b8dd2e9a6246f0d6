"""Lesson 00: answers that no row of a table can be. Cheats and rarer mistakes; and right ones in other styles."""

import os

from lessons.start_here import exercises as ex
from lessons.start_here.exercises import DEAL, ONE_LINE, REDUCE, ZERO
from tests.answers import edits, right, wrong

test_my_share = edits(
    ex.my_share,
    (DEAL, "items[rank % 2::2]", "3 ranks"),
    ("return ", "", "returned None"),
    (DEAL, "set(items[rank::world_size])", "the shares hold `0` 2×, the items 4×"),
    (DEAL, "[item for item in items if items.index(item) % world_size == rank]", "`index`, knows only one of them"),
    (DEAL, "[item for item in items[rank::world_size] if item]", "`0` went to no rank"),
    (DEAL, f"[*{DEAL}, None]", "nor padding"),
    ("return ", "items.sort()\n    return ", "changed the list"),
)


@wrong(ex.my_share, "4 ranks, 10 items: rank 3 got 4 items, rank 0 only 2")
def test_rounds_the_length(items, rank, world_size):
    each = round(len(items) / world_size)
    return items[rank * each:(rank + 1) * each] if rank < world_size - 1 else items[rank * each:]


@right(ex.my_share)
def test_blocks_of_neighbours(items, rank, world_size):
    each, more = divmod(len(items), world_size)
    first = rank * each + min(rank, more)
    return tuple(items[first:first + each + (rank < more)])


@right(ex.my_share)
def test_by_numpy(items, rank, world_size):
    import numpy

    return numpy.array_split(numpy.array(items), world_size)[rank]


@right(ex.my_share)
def test_one_by_one(items, rank, world_size):
    return (item for number, item in enumerate(items) if number % world_size == rank)


test_mean_of_ranks = edits(
    ex.mean_of_ranks,
    (ONE_LINE, f"    if value:\n    {ONE_LINE}", "a zero among them: rank 0 had returned, rank 1 waited in vain"),
    ("total.item() / dist.get_world_size()", "float('nan')", "returned nan"),
    ("value)])", "value)], dtype=torch.bfloat16)", "a dtype that keeps six digits"),
    (REDUCE, "dist.destroy_process_group()", "group"),
)


@wrong(ex.mean_of_ranks, "returned 17, where the numbers are 5, 5, 29")
def test_counts_equal_numbers_once(value):
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return sum(set(values)) / len(set(values))


@right(ex.mean_of_ranks)
def test_by_gathering_objects(value):
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return sum(values) / len(values)


@right(ex.mean_of_ranks)
def test_by_rank_0(value):
    import torch
    import torch.distributed as dist

    total = torch.tensor(value, dtype=torch.float64)
    dist.reduce(total, dst=0)
    total /= dist.get_world_size()
    dist.broadcast(total, src=0)
    return float(total)


test_say_it_once = edits(
    ex.say_it_once,
    (ZERO, "\"0\" in os.environ[\"RANK\"]", "3 ranks, nine times as many: it was printed 3 times, by rank 0, 10, 20"),
    ("print(message)", "print(message.strip())", "what was printed is `epoch 0:"),
    ("print(message)", "print('Training begins.')", "another message: it was not printed"),
    ("print(message)", "print(message, end='!')", "more than the message"),
)


@right(ex.say_it_once)
def test_to_stdout(message):
    import sys

    if os.environ["RANK"] == "0":
        sys.stdout.write(message + "\n")
