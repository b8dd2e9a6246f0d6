"""Lesson 00: rarer mistakes, which no row of a table names, and right answers in other styles."""

import os

from lessons.start_here import exercises as ex
from tests.answers import edits, right

test_my_share = edits(
    ex.my_share,
    ("return ", "", "is there a `return`?"),
    ("items[rank::world_size]", "''.join(map(str, items[rank::world_size]))", "returned a str"),
    ("items[rank::world_size]", "{rank: items[rank::world_size]}", "in rank 0, your function returned a dict"),
    ("items[rank::world_size]", "[items[rank::world_size]]", "returned a list that holds a list, `['a', 'c', 'e']`"),
    ("items[rank::world_size]", "[str(item) for item in items[rank::world_size]]",
     "4 equal items: in rank 0, your function returned a list that holds a str, `'0'`"),
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
    ("total.item()", "total.numpy()[0]", "and `float()` of other things"),
    ("return ", "", "does every rank come to a `return`?"),
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
     "another message: what the rank printed is `'Training begins.\\n'`"),
    ("print(message)", "print(message)\n    else:\n        print()",
     "3 ranks: 3 ranks print: `'Training begins.\\n'`, `'\\n'`"),
    ("if int(os.environ[\"RANK\"]) == 0:\n        print(message)",
     "rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
     "    each = -(-len(message) // ranks)\n    print(message[rank * each:(rank + 1) * each], end='')",
     "one rank prints the whole message"),
    ("if int(os.environ[\"RANK\"]) == 0:\n        print(message)",
     "import sys\n    if os.environ['RANK'] != '0':\n        sys.stdout.close()\n    else:\n        print(message)",
     "in rank 1, after your function, `print` prints nothing any more"),
    ("if int(os.environ[\"RANK\"]) == 0:", "if os.environ['RANK'] == os.environ['WORLD_SIZE']:", "it was not printed"),
    ("if int(os.environ[\"RANK\"]) == 0:\n        print(message)",
     "import sys\n    if os.environ['RANK'] != '0':\n        sys.stdout = open(os.devnull, 'w')\n    print(message)",
     "in rank 1, after your function, `print` prints nothing any more"),
)


@right(ex.say_it_once)
def test_the_first_rank_of_the_first_machine(message):
    if os.environ["GROUP_RANK"] == "0" and os.environ["LOCAL_RANK"] == "0":
        print(message)


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
