"""Lesson 00: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
my_share        items that equal their numbers; sets, which lose equal items; blocks, iterators and tuples are as right
mean_of_ranks   whole numbers with a whole mean (a bfloat16 or an integer passes); never waited for; other collectives
say_it_once     a message looked for and not compared; the message known by heart; RANK compared as text, or searched
"""

import os

from lessons.start_here import exercises as ex
from tests.answers import edits, right, wrong

test_my_share = edits(
    ex.my_share,
    ("items[rank::world_size]", "(items + items[:-len(items) % world_size])[rank::world_size]", "is the list padded"),
    ("items[rank::world_size]", "items", "2×, the items 1×"),
    ("items[rank::world_size]", "items[rank % 2::2]", "3 ranks"),
    ("items[rank::world_size]", "2 * items[rank::world_size]", "2×, the items 1×"),
    ("items[rank::", "items[rank - 1::", "ranks are counted from 0"),
    ("items[rank::world_size]", "range(rank, len(items), world_size)", "not among the items"),
    ("return ", "", "returned None"),
    ("items[rank::world_size]", "set(items[rank::world_size])", "the shares hold `0` 2×, the items 4×"),
    ("items[rank::world_size]", "sorted(set(items))[rank::world_size]", "a set, or `index`, knows only one of them"),
    ("items[rank::world_size]", "[item for item in items if items.index(item) % world_size == rank]",
     "`index`, knows only one of them"),
    ("items[rank::world_size]", "[item for item in items[rank::world_size] if item]", "`0` went to no rank"),
    ("return ", "items.sort()\n    return ", "changed the list"),
    ("items[rank::world_size]", "[*items[rank::world_size], None]", "nor padding"),
)


@wrong(ex.my_share, "no rank")
def test_drops_the_remainder(items, rank, world_size):
    each = len(items) // world_size
    return items[rank * each:(rank + 1) * each]


@wrong(ex.my_share, "rank 2 got 3 items")
def test_remainder_to_the_last(items, rank, world_size):
    each = len(items) // world_size
    return items[rank * each:] if rank == world_size - 1 else items[rank * each:(rank + 1) * each]


@wrong(ex.my_share, "4 ranks, 10 items: rank 3 got 4 items, rank 0 only 2")
def test_rounds_the_length(items, rank, world_size):
    each = round(len(items) / world_size)
    return items[rank * each:(rank + 1) * each] if rank < world_size - 1 else items[rank * each:]


@wrong(ex.my_share, "changed the list")
def test_takes_them_out(items, rank, world_size):
    share = items[rank::world_size]
    del items[rank::world_size]
    return share


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
    ("total.item()", "(total.item() + value)", "with its own number in it twice"),
    (" / dist.get_world_size()", "", "the sum"),
    ("dist.get_world_size()", "2", "3 ranks"),
    ("dist.get_world_size()", "(dist.get_rank() + 1)", "rank 0 returned 13, the sum"),
    ("dist.all_reduce(total)", "dist.reduce(total, dst=0)", "rank 1"),
    ("    dist.all_reduce(total)\n", "", "its own number divided by the ranks"),
    ("    dist.all_reduce(total)\n", "    if value:\n        dist.all_reduce(total)\n",
     "a zero among them: rank 0 had returned, rank 1 waited in vain"),
    ("total.item() / dist.get_world_size()", "float(value)", "its own number"),
    ("all_reduce(total)", "all_reduce(total, async_op=True)", "never waited for it"),
    ("total.item()", "total", "returned a Tensor"),
    ("total.item() / dist.get_world_size()", "float('nan')", "returned nan"),
    ("dist.all_reduce(total)", "if dist.get_rank() == 0:\n        dist.all_reduce(total)\n    dist.barrier()",
     "waited in vain at `dist.all_reduce(total)`"),
    ("torch.tensor([float(value)])", "torch.tensor([int(value)])", "lost its digits"),
    ("torch.tensor([float(value)])", "torch.tensor([float(value)], dtype=torch.bfloat16)", "lost its digits"),
    ("total.item() / ", "total.item() // ", "and `//`"),
    ((("dist.all_reduce(total)", "dist.all_reduce(total, op=dist.ReduceOp.MAX)"), (" / dist.get_world_size()", "")),
     "returned 12\n"),
    ("dist.all_reduce(total)", "dist.destroy_process_group()", "group"),
    ("all_reduce(total)", "all_reduce(total, dist.ReduceOp.MAX)\n    total *= dist.get_world_size()",
     "`[tensor] * n` is one tensor under n names"),
    ("    dist.all_reduce(total)\n", "    dist.all_reduce(total)\n    total -= 12 * (total > 20)\n", "as if 12 were 0"),
)


@wrong(ex.mean_of_ranks, "equal numbers: given 5, 5, 29, rank 0 returned 17")
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
    ('int(os.environ["RANK"]) == 0', '__import__("torch").distributed.is_initialized() is False', "is false in each"),
    ("    if int(os.environ[\"RANK\"]) == 0:\n        print(message)", "    print(message)",
     "3 ranks: it was printed 3 times"),
    ("int(os.environ[\"RANK\"]) == 0", "os.environ[\"RANK\"] == \"1\"", "1 rank: it was not printed"),
    ("int(os.environ[\"RANK\"]) == 0", "os.environ[\"RANK\"] == 0", "1 rank: it was not printed"),
    ("int(os.environ[\"RANK\"]) == 0", "int(os.environ[\"RANK\"]) > 0 or os.environ[\"WORLD_SIZE\"] == \"1\"",
     "3 ranks: it was printed 2 times"),
    ("int(os.environ[\"RANK\"]) == 0", "\"0\" in os.environ[\"RANK\"]",
     "3 ranks, nine times as many: it was printed 3 times, by rank 0, 10, 20"),
    ("RANK", "LOCAL_RANK", "`LOCAL_RANK` counts anew on each machine"),
    ("print(message)", "print(message.strip())", "what was printed is `epoch 0:"),
    ("print(message)", "print('Training begins.')", "another message: it was not printed"),
    ("print(message)", "print('rank 0 says:', message)", "more than the message"),
    ("print(message)", "print(message, end='!')", "more than the message"),
    ("print(message)", "print('', message)", "more than the message"),
)


@right(ex.say_it_once)
def test_to_stdout(message):
    import sys

    if os.environ["RANK"] == "0":
        sys.stdout.write(message + "\n")
