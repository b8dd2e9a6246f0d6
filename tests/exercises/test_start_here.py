"""Lesson 00: rarer mistakes, which no row of a table names, and right answers in other styles."""

import os

from lessons.start_here import exercises as ex
from tests.answers import edits, right

test_my_share = edits(
    ex.my_share,
    ("return ", "", "returned None"),
    ("items[rank::world_size]", "set(items[rank::world_size])",
     "the ranks got `0` 2 times, and the list holds it 4 times"),
    ("return items", "items.sort()\n    return items", "2 ranks, 10 items: in rank 0, your function changed `items`"),
    ("return items", "items += items[:1] * (-len(items) % world_size)\n    return items", "changed `items`"),
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
    ("total = ", "if not value:\n        return 0.0\n    total = ", "an early `return` or the rounds of a loop"),
    ("dist.all_reduce(total)", "total = torch.zeros(dist.get_rank() + 1)\n    dist.all_reduce(total)",
     "the shape or the dtype differ between them?"),
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
     "another message: what the ranks printed is `'Training begins.\\n'`"),
    ("print(message)", "print(message)\n    else:\n        print()", "3 ranks: what the ranks printed is"),
    ("if int(os.environ[\"RANK\"]) == 0:", "if os.environ['RANK'] == os.environ['WORLD_SIZE']:", "it was not printed"),
    ("if int(os.environ[\"RANK\"]) == 0:\n        print(message)",
     "import sys\n    if os.environ['RANK'] != '0':\n        sys.stdout = open(os.devnull, 'w')\n    print(message)",
     "in rank 1, after your function, `print` prints nothing any more"),
)


@right(ex.say_it_once)
def test_to_stdout(message):
    import sys

    if os.environ["RANK"] == "0":
        sys.stdout.write(message + "\n")


@right(ex.say_it_once)
def test_to_stderr_from_the_last_rank(message):
    import sys

    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        print(message, end="", file=sys.stderr)
