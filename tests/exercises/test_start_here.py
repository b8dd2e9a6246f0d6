"""Lesson 00: rarer mistakes, which no row of a table names, and right answers in other styles."""

import os

from lessons.start_here import exercises as ex
from tests.answers import edits, right

test_my_share = edits(
    ex.my_share,
    ("return ", "", "returned None"),
    ("items[rank::world_size]", "set(items[rank::world_size])",
     "the ranks got `0` 2 times, and the list holds it 4 times"),
)


@right(ex.my_share)
def test_blocks_of_neighbours(items, rank, world_size):
    each, more = divmod(len(items), world_size)
    first = rank * each + min(rank, more)
    return tuple(items[first:first + each + (rank < more)])


@right(ex.my_share)
def test_by_numpy(items, rank, world_size):
    import numpy

    return numpy.array_split(numpy.array(items), world_size)[rank]


test_mean_of_ranks = edits(
    ex.mean_of_ranks,
    ("total.item()", "total", "returned a Tensor"),
)


@right(ex.mean_of_ranks)
def test_by_gathering_objects(value):
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return sum(values) / len(values)


test_say_it_once = edits(
    ex.say_it_once,
    ("print(message)", "print('Training begins.')",
     "another message: what was printed is `Training begins.`"),
)


@right(ex.say_it_once)
def test_to_stdout(message):
    import sys

    if os.environ["RANK"] == "0":
        sys.stdout.write(message + "\n")
