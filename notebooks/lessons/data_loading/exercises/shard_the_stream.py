"""One stream, read by all workers of all ranks: each item by one of them."""

import os
from collections import Counter
from itertools import islice

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import holds
from helpers.launcher.sending import packed, unpacked
from lessons.data_loading.exercises.quick_workers import allow_quick_workers

#: Items of which none equals its place, some are equal, and one is false.
NUMBERS = (40, 7, 16, 16, 0, 28, 40, 52, 16, 4, 64, 76, 88)
#: What a reader observes as an item, if it has seen all that a stream without end will give here.
THE_END = "the end of a stream without end"


class Stream(IterableDataset):
    """Gives (number of the reader, item as text) of what the answer gives there, up to one item too many."""

    def __init__(self, share, items):
        self.share = packed(share)  # a worker that is not forked cannot find the cell
        self.items = items

    def __iter__(self):
        info = get_worker_info()
        reader = info.id if info else 0
        endless = self.items is None
        stream = iter(range(1000) if endless else self.items)
        most = 4 if endless else len(self.items) + 1

        share = unpacked(self.share)
        given = share(stream, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if not hasattr(given, "__iter__"):
            given = [given]
        for item in islice(given, most):
            plain = item.tolist() if hasattr(item, "tolist") else item  # numpy's numbers are as right
            yield reader, repr(plain)[:40]
        if endless and next(stream, THE_END) is THE_END:
            yield reader, THE_END


def by_reader(ranks):
    """Of what all ranks have observed: {the reader, in words: its items}"""
    items = {}
    for rank, by_number in enumerate(ranks):
        for number, read_there in by_number.items():
            items[f"rank {rank}, reader {number}"] = read_there
    return items


def counted(ranks):
    """How often each item was read, in all ranks."""
    counts = Counter()
    for items in by_reader(ranks).values():
        counts.update(items)
    return counts


def with_all_readers(problem, mine):
    """(observed, expected): the problem, and below it what each reader read."""
    lines = [problem]
    for name, items in by_reader(mine).items():
        lines.append(f"{name} read {' '.join(items[:14]) or 'nothing'}")
    return "\n".join(lines), "each item is read once, and readers differ by one item at most"


def steps_of(items, stream):
    """All steps with which a reader that takes every so-many-th item of the stream could have read these."""
    return {step for step in range(1, len(stream) + 1) for first in range(step) if stream[first::step] == items}


def wrong_times(items, mine, wanted):
    """(observed, expected) of the first of the items; None if there are none."""
    for item in items:
        times = counted(mine)[item]
        right = counted(wanted)[item]
        return with_all_readers(f"item {item} was read {times}×, instead of {right}×", mine)


class ShardTheStream(Exercise):
    title = "Each item of a stream exactly once"
    task = ("A training of `world_size` ranks reads one stream, and each rank's DataLoader may have workers. "
            "The loader calls your function wherever the stream is read: in every worker of every rank or, "
            "with `num_workers=0`, in the rank itself. Return or `yield` those items of `stream`, an "
            "iterator, that are to be read **there**. In all, each item must be read exactly once, and no "
            "reader may get two items more than another. Some items are equal, and a stream may have no end. "
            "`torch.utils.data.get_worker_info()` says which worker asks. It is None where there are no "
            "workers.")
    hints = (
        "How many readers are there, in all ranks together? Which number has this one? Once you know "
        "both, deal the items out like cards.",
        "`info.num_workers` and `info.id` count the workers of *this* rank. There are `world_size * "
        "num_workers` readers, and this one has the number `rank * num_workers + id`. Without workers, "
        "use 1 and 0.",
        "`itertools.islice(stream, first, None, step)` takes every `step`-th item of an iterator.",
    )
    explanation = ("All readers have consecutive numbers, and each takes every `readers`-th item. So every "
                   "reader still goes through the whole stream. With files, deal out the files in the same "
                   "way.")
    why = ("every worker has a copy of the dataset and reads all of it, unless you tell it otherwise. "
           "Nothing fails then. An epoch only takes several times as long, and the model sees every item "
           "several times.")

    world_sizes = (2, 3, 1)
    # How many workers each rank has, and the items; None for a stream without end.
    cases = {
        "no workers, 13 items": (0, NUMBERS),
        "2 workers each, 13 items": (2, NUMBERS),
        "1 worker each, 7 items": (1, NUMBERS[:7]),
        "3 workers each, 7 items": (3, NUMBERS[:7]),
        "2 workers each, no items": (2, ()),
        "2 workers each, a stream without end": (2, None),
    }
    slow = True

    def answer(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return islice(stream, rank * workers + worker, None, world_size * workers)      #: deal

    def observe(shard_the_stream, case):
        allow_quick_workers()
        workers, items = case
        read = {number: [] for number in range(max(1, workers))}
        loader = DataLoader(Stream(shard_the_stream, items), batch_size=None, num_workers=workers)
        for number, item in loader:
            if items is not None or item == THE_END:  # of a stream without end, others come: enough
                read[number].append(item)
        return read

    # ---------------------------------------------------------------------------------------- what must hold

    endless = "`list(stream)` waits for the end of the stream: take the items one by one, as they come"
    as_they_are = "pass the items on as they are: what does the function return, or yield?"
    numbered = "which readers read the same items? And what tells each of them from all others?"
    left_out = ("which number has each reader, and where do the last items go? Some items are equal, and some "
                "are false, such as 0. In a function that has a `yield`, `return` hands nothing on")
    as_many = ("each rank has as many readers as the others: so ranks *times* readers of a rank. A reader's next item "
               "is that many places further on")
    evenly = "number all readers of all ranks, from 0 on, and deal the items out by their place in the stream"

    def waits_for_the_end(mine, wanted, case):
        if THE_END in counted(mine):
            return ("1,000 items of a stream without end were taken, and not four handed on",
                    "each, when it is read")

    def not_an_item(mine, wanted, case):
        for item in counted(mine):
            if item not in counted(wanted):
                return with_all_readers(f"`{item}` is not among the items", mine)

    def too_often(mine, wanted, case):
        return wrong_times(counted(mine) - counted(wanted), mine, wanted)

    def not_their_number(mine, wanted, case):
        _, stream = case
        if stream is None or not counted(wanted) - counted(mine):
            return None
        read = [items for items in by_reader(mine).values() if len(items) > 1]
        steps = set(range(1, len(stream) + 1))
        for items in read:
            steps &= steps_of(items, [repr(item) for item in stream])
        readers = len(by_reader(mine))
        if read and steps and readers not in steps:
            problem, _ = with_all_readers(f"each reader read one item in {min(steps)}", mine)
            return problem, f"one item in {readers}, because there are {readers} readers in all ranks together"

    def too_rarely(mine, wanted, case):
        return wrong_times(counted(wanted) - counted(mine), mine, wanted)

    def unevenly(mine, wanted, case):
        counts = [len(items) for items in by_reader(mine).values()]
        most, least = max(counts), min(counts)
        if most > least + 1:
            return with_all_readers(f"all items were read, but one reader got {most}, another {least}", mine)

    rules = (
        holds(waits_for_the_end, endless),
        holds(not_an_item, as_they_are),
        holds(too_often, numbered),
        holds(not_their_number, as_many),
        holds(too_rarely, left_out),
        holds(unevenly, evenly),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(numbered, deal="return stream"),
        mistake(numbered, deal="return islice(stream, rank, None, world_size)"),
        mistake(numbered, deal="return islice(stream, worker, None, workers)"),
        mistake(numbered, deal="return islice(stream, rank + worker, None, world_size * workers)"),
        mistake(as_many, deal="return islice(stream, rank * workers + worker, None, world_size + workers)"),
        mistake(left_out,
                deal="return filter(None, islice(stream, rank * workers + worker, None, world_size * workers))"),
        mistake(left_out,
                deal="yield from ()\n"
                     "return islice(stream, rank * workers + worker, None, world_size * workers)"),
        mistake(evenly,
                deal="return (item for item in stream\n"
                     "        if item % (world_size * workers) == rank * workers + worker)"),
        mistake(as_they_are, deal="islice(stream, rank * workers + worker, None, world_size * workers)"),
        mistake(endless,
                deal="return islice(list(stream), rank * workers + worker, None, world_size * workers)"),
    )


shard_the_stream = ShardTheStream()
