"""The exercises of data loading: hide the loading, share a stream, find the slow transform."""

import contextlib
import importlib
import inspect
import multiprocessing
import os
import pickle
import sys
import time
import timeit
import warnings
from collections import Counter
from itertools import accumulate, chain, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import BuiltinFunctionType, SimpleNamespace
from unittest import mock

import cloudpickle
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from helpers.exercises.engine import scratch
from helpers.exercises.tables import Table, between, each, holds, nothing, same
from helpers.instruments.calls import counted_calls

TRUE = SimpleNamespace(sleep=time.sleep, process_time=time.process_time)  # whatever is patched


def _allow_quick_workers():
    """Let DataLoader fork its workers: quick, and safe in a rank in which nothing has computed yet."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)


#: The first exercise: the batch size does not divide the samples; no sample equals its place. Milliseconds
#: that a sample waits for its disk, and that the device needs for a step.
VALUES, BATCH, READ_MS, STEP_MS = [1000 - 3 * place for place in range(50)], 4, 8, 10
SPEED_UP, MOST_WORKERS = 1.8, 4
LOADER = "DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)"
ITSELF = "return the loader itself; the training loop will iterate over it"
FEWER = "each worker costs memory and time to start: how many are needed?"
TWICE = "does the sampler draw an index twice? Or does each worker read a whole iterable dataset?"
NEVER = "is a last, smaller batch dropped? Does the sampler give every sample, and begin anew in each epoch?"
ONCE = "each sample once, also in the second epoch"
SIZES = "another batch size is another training"
ANEW = "`DataLoader(dataset, …)`: a real dataset is too large to be read beforehand, or kept"
HIDDEN = "`num_workers`: who loads while the device computes, and how many at a time?"
KEPT = "`persistent_workers` keeps the workers of the first epoch"


class SlowDisk:
    """A dataset whose samples wait for a disk, asleep. It logs when each read begins (3) and ends (-3)."""

    def __init__(self, log):
        self.log, self.reads_here = log, 0

    def __len__(self):
        return len(VALUES)

    def __getitem__(self, index):
        value = VALUES[index]
        self.reads_here += 1  # of this process: a worker has a copy
        for mark, ms in ((value, READ_MS), (-value, 0)):
            with open(self.log, "a") as log:  # one write, at its end: many processes write, line by line
                log.write(f"{mark}\n")
            TRUE.sleep(ms / 1000)
        return value


def batches_of(loader):
    """The values in each batch of one epoch; stops in good time."""
    return [[value for leaf in tree_leaves(batch) for value in torch.as_tensor(leaf).flatten().tolist()]
            for batch in islice(loader, 2 * len(VALUES))]


def too_slow(mine, wanted, case):
    reading = BATCH * READ_MS / mine["read at once"]  # a batch; the step beside it is known: nothing is timed
    if mine["read ahead"]:
        epoch, meanwhile = max(reading, STEP_MS), "computed"
    else:
        epoch, meanwhile = reading + STEP_MS, "waited"
    speed_up = (BATCH * READ_MS + STEP_MS) / epoch
    if speed_up < SPEED_UP:
        return (f"with num_workers={mine['workers']}, samples were read {mine['read at once']} at a time, "
                f"while the device {meanwhile}: an epoch is {speed_up:.1f} times as fast as without workers",
                f"at least {SPEED_UP} times")


class HideTheLoading(Table):
    title = "Hide the loading"
    task = ("`dataset` has 50 samples, and each of them waits 8 ms for a disk. The device needs 10 ms for a "
            "batch of 4. Return a `DataLoader` that gives batches of 4 and every sample once per epoch. An "
            "epoch must be at least 1.8 times as fast as without workers. Use at most 4 workers, and start "
            "none after the first epoch. The samples do not fit into memory, so read them anew in each "
            "epoch.")
    hints = ("One process needs 4 × 8 ms for a batch, and the device takes a batch every 10 ms. How many "
             "processes must load side by side?",
             "`DataLoader(dataset, batch_size=…, num_workers=…)`. And `persistent_workers=True` keeps the "
             "workers from one epoch to the next.")
    explanation = ("Loading a batch takes about three times as long as the step, so three or four workers "
                   "keep the device busy. They sleep most of the time, so they do not need as many cores.")
    why = ("a device that waits costs as much as one that computes. Once loading is hidden behind computing, "
           "an epoch takes as long as its steps, and more workers bring nothing.")
    timeout, slow = 30, True

    def answer(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)

    def observe(hide_the_loading, case):
        _allow_quick_workers()
        with scratch() as folder:
            dataset = SlowDisk(Path(folder, "reads"))
            loader = hide_the_loading(dataset)
            returned = "DataLoader" if isinstance(loader, DataLoader) else type(loader).__name__
            workers = getattr(loader, "num_workers", 0)
            if returned != "DataLoader" or workers > MOST_WORKERS:
                return {"returned": returned, "workers": workers}
            batches_of(loader)
            dataset.log.write_text("")
            dataset.reads_here = 0
            with counted_calls(BaseProcess, "start") as calls:
                batches = batches_of(loader)  # the second epoch
            marks = [int(mark) for mark in dataset.log.read_text().split()]
        came, read = Counter(chain.from_iterable(batches)), Counter(mark for mark in marks if mark > 0)
        return {
            "returned": returned,
            "workers": workers,
            "samples that came more than once": sum(came[value] > 1 for value in VALUES),
            "samples that never came": sum(came[value] == 0 for value in VALUES),
            "sizes of batches": dict(Counter(sorted(map(len, batches), reverse=True))),
            "samples not read exactly once": sum(read[value] != 1 for value in VALUES),
            "read at once": max(accumulate(1 if mark > 0 else -1 for mark in marks), default=0),
            "read ahead": not dataset.reads_here,
            "workers started": len(calls["start"])}

    rules = (
        same("returned", ITSELF),
        between("workers", lambda wanted, case: (0, MOST_WORKERS), FEWER),
        nothing("samples that came more than once", TWICE, ONCE),
        nothing("samples that never came", NEVER, ONCE),
        same("sizes of batches", SIZES),
        nothing("samples not read exactly once", ANEW, "each is read once, in each epoch"),
        each(too_slow, HIDDEN),
        nothing("workers started", KEPT, "none in the second epoch"),
    )
    mistakes = (
        (", num_workers=4, persistent_workers=True", "", HIDDEN),
        ("num_workers=4", "num_workers=1", HIDDEN),
        (", persistent_workers=True", "", KEPT),
        ("num_workers=4", "num_workers=32", FEWER),
        ("persistent_workers=True", "persistent_workers=True, drop_last=True", NEVER),
        ("DataLoader(dataset,", "DataLoader(list(dataset),", ANEW),
        (LOADER, f"list({LOADER})", ITSELF),
    )


#: The second exercise: items of which none equals its place, some are equal, and one is false.
NUMBERS = (40, 7, 16, 16, 0, 28, 40, 52, 16, 4, 64, 76, 88)
DEALT = "islice(stream, rank * workers + worker, None, world_size * workers)"
ME = "rank * workers + worker"
AS_THEY_ARE = "pass the items on as they are: what does the function return, or yield?"
NUMBERED = ("what tells one reader from all others? Both its rank and its worker do. Number the readers "
            "without a gap; a reader's next item is as many places further on as there are readers")
LEFT_OUT = ("which number has each reader, and where do the last items go? Some items are equal, and some "
            "are false, such as 0. In a function that has a `yield`, `return` hands nothing on")
EVENLY = "number all readers of all ranks, from 0 on, and deal the items out by their place in the stream"
THE_END = "the end of a stream without end"
ENDLESS = "`list(stream)` waits for the end of the stream: take the items one by one, as they come"


def readers(ranks):
    return {f"rank {rank}, reader {number}": items
            for rank, by_number in enumerate(ranks) for number, items in by_number.items()}


def read(ranks):
    return Counter(chain.from_iterable(readers(ranks).values()))


def by_whom(problem, mine):
    lines = [f"{name} read {' '.join(items[:14]) or 'nothing'}" for name, items in readers(mine).items()]
    return "\n".join([problem, *lines]), "each item is read once, and readers differ by one item at most"


def not_an_item(mine, wanted, case):
    for item in read(mine):
        if item not in read(wanted):
            return by_whom(f"`{item}` is not among the items", mine)


def wrong_times(items, mine, wanted):
    for item in items:
        return by_whom(f"item {item} was read {read(mine)[item]}×, instead of {read(wanted)[item]}×", mine)


def too_often(mine, wanted, case):
    return wrong_times(read(mine) - read(wanted), mine, wanted)


def too_rarely(mine, wanted, case):
    return wrong_times(read(wanted) - read(mine), mine, wanted)


def unevenly(mine, wanted, case):
    counts = [len(items) for items in readers(mine).values()]
    if max(counts) > min(counts) + 1:
        return by_whom(f"all items were read, but one reader got {max(counts)}, another {min(counts)}", mine)


def waits_for_the_end(mine, wanted, case):
    if THE_END in read(mine):
        return ("1,000 items of a stream without end were taken, and not four handed on",
                "each, when it is read")


class Stream(IterableDataset):
    """Gives (number of the reader, item as text) of what the answer gives there, up to one item too many."""

    def __init__(self, share, items):
        self.share = cloudpickle.dumps(share)  # a worker that is not forked cannot find the cell
        self.items = items

    def __iter__(self):
        info = get_worker_info()
        share, stream = pickle.loads(self.share), iter(range(1000) if self.items is None else self.items)
        given = share(stream, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        most = 4 if self.items is None else len(self.items) + 1
        for item in islice(given, most) if hasattr(given, "__iter__") else [given]:
            plain = item.tolist() if hasattr(item, "tolist") else item  # numpy's numbers are as right
            yield info.id if info else 0, repr(plain)[:40]
        if self.items is None and next(stream, THE_END) is THE_END:
            yield info.id if info else 0, THE_END


class ShardTheStream(Table):
    title = "Each item of a stream exactly once"
    task = ("A training of `world_size` ranks reads one stream, and each rank's DataLoader may have workers. "
            "The loader calls your function wherever the stream is read: in every worker of every rank or, "
            "with `num_workers=0`, in the rank itself. Return or `yield` those items of `stream`, an "
            "iterator, that are to be read **there**. In all, each item must be read exactly once, and no "
            "reader may get two items more than another. Some items are equal, and a stream may have no end. "
            "`torch.utils.data.get_worker_info()` says which worker asks. It is None where there are no "
            "workers.")
    hints = ("How many readers are there, in all ranks together? Which number has this one? Once you know "
             "both, deal the items out like cards.",
             "`info.num_workers` and `info.id` count the workers of *this* rank. There are `world_size * "
             "num_workers` readers, and this one has the number `rank * num_workers + id`. Without workers, "
             "use 1 and 0.",
             "`itertools.islice(stream, first, None, step)` takes every `step`-th item of an iterator.")
    explanation = ("All readers have consecutive numbers, and each takes every `readers`-th item. So every "
                   "reader still goes through the whole stream. With files, deal out the files in the same "
                   "way.")
    why = ("every worker has a copy of the dataset and reads all of it, unless you tell it otherwise. "
           "Nothing fails then. An epoch only takes several times as long, and the model sees every item "
           "several times.")
    world_sizes, slow = (2, 3, 1), True
    cases = {"no workers, 13 items": (0, NUMBERS), "2 workers each, 13 items": (2, NUMBERS),
             "1 worker each, 7 items": (1, NUMBERS[:7]), "3 workers each, 7 items": (3, NUMBERS[:7]),
             "2 workers each, no items": (2, ()), "2 workers each, a stream without end": (2, None)}

    def answer(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return islice(stream, rank * workers + worker, None, world_size * workers)

    def observe(shard_the_stream, case):
        _allow_quick_workers()
        workers, items = case
        read = {number: [] for number in range(max(1, workers))}
        loader = DataLoader(Stream(shard_the_stream, items), batch_size=None, num_workers=workers)
        for number, item in loader:
            if items is not None or item == THE_END:  # of a stream without end, others come: enough
                read[number].append(item)
        return read

    rules = (
        holds(waits_for_the_end, ENDLESS),
        holds(not_an_item, AS_THEY_ARE),
        holds(too_often, NUMBERED),
        holds(too_rarely, LEFT_OUT),
        holds(unevenly, EVENLY),
    )
    mistakes = (
        (DEALT, "stream", NUMBERED),
        (DEALT, "islice(stream, rank, None, world_size)", NUMBERED),
        (DEALT, "islice(stream, worker, None, workers)", NUMBERED),
        (ME, "rank + worker", NUMBERED),
        (DEALT, f"filter(None, {DEALT})", LEFT_OUT),
        ("    return ", "    yield from ()\n    return ", LEFT_OUT),
        (DEALT, f"(item for item in stream if item % (world_size * workers) == {ME})", EVENLY),
        ("return ", "", AS_THEY_ARE),
        ("return islice(stream", "return islice(list(stream)", ENDLESS),
    )


#: Milliseconds of the third exercise: for which a quick transform computes, and the slow one waits.
QUICK_MS, SLOW_MS = 0.3, 12
#: Seconds that transforms may take in one pipeline before the measuring is ended.
PATIENCE = 2
INDEX = "seconds.index(max(seconds))"
WAITING = ("do you time each call from just before it to just after it, several times, with a clock that "
           "sees waiting, too? `process_time` counts computing only, `perf_counter` all. And is it `max`, "
           "not `min`?")
FIRST_CALL = "the first call says nothing about thousands: is it among what you measure?"
HANDED_ON = "does each transform get what the one before it returned?"
REPEATED = "how often do you repeat, and does each sample begin with `image` again?"
FUNCTION = "return the function itself, not its number, its name or its time"


class TooLong(Exception):
    """The transforms of one pipeline have taken more than PATIENCE."""

    __module__ = "builtins"  # a traceback then names it without where it comes from


def not_in_the_list(mine, wanted, case):
    if mine["found"] not in case[1]:
        return f"your function returned {mine['found']}", "one of the functions in `transforms`"


def found_a_quick_one(mine, wanted, case):
    if mine["found"] != wanted["found"]:
        return (f"you found one that is quick. Transforms called more than once: {mine['called again']}",
                "the function that takes most of the time, by itself and not by its name: all have the same")


def _transform(name, spent, calls, computes=QUICK_MS, waits=0, first=0, grows=1, per_pixel=False):
    """A step of a pipeline: computes and waits for so many milliseconds, and keeps what it has `spent`."""

    def transform(image):
        pixels = len(image) ** 2 / 16 if per_pixel else 1
        computing, waiting = computes / 1000, (waits * pixels + first * (name not in calls)) / 1000
        calls[name] += 1
        spent["computing"] += computing
        if spent.total() > PATIENCE:
            raise TooLong(f"the transforms have taken {PATIENCE} s; one is more than enough")
        end = TRUE.process_time() + computing
        while TRUE.process_time() < end:
            pass
        time.sleep(waiting)
        return [0] * (len(image) * grows)

    return transform


@contextlib.contextmanager
def _clocks_of(spent, names):
    """All clocks of `time` show what the transforms have spent, and what was slept, whatever else runs here.

    `names` are the globals of the learner's function, which may have clocks by names of their own.
    """

    def clock(kinds, unit):
        def now():
            spent["looking"] += 1e-5  # so that a loop which waits for a moment gets there
            return unit * 1000 + type(unit)(unit * sum(spent[kind] for kind in kinds))  # all begin at 1000 s

        return now

    def sleep(seconds):
        spent["waiting"] += seconds
        TRUE.sleep(seconds)

    kinds = dict.fromkeys(("perf_counter", "monotonic", "time"), ("computing", "waiting", "looking"))
    kinds |= dict.fromkeys(("process_time", "thread_time"), ("computing",))
    clocks = {name + ns: clock(kind, unit) for name, kind in kinds.items()
              for ns, unit in (("", 1.0), ("_ns", 10**9))}
    true = {getattr(time, name): patched for name, patched in clocks.items()}
    own = {name: true[one] for name, one in names.items() if type(one) is BuiltinFunctionType and one in true}
    with mock.patch.multiple(time, sleep=sleep, **clocks), mock.patch.dict(names, own):
        yield


class SlowestTransform(Table):
    title = "Find the slow transform"
    task = ("`transforms` is a list of functions. A sample goes through them one after another: `image` goes "
            "into the first, and each gets what the one before it returned. Thousands of samples go through "
            "them. Measure, and return the one **function** that takes most of that time. The check has its "
            "own pipelines: some transforms are slow in their first call only, some depend on the size of "
            "the image, some wait for a disk. You have a second per pipeline.")
    hints = ("Take the time before and after each call, and hand what one transform returns to the next one.",
             "One sample is not enough. Send several through, and add up the times of each transform, "
             "without the first sample. `time.perf_counter()` counts waiting, too.")
    explanation = ("The transforms are timed as they are used: one after another, on several samples. The "
                   "first sample pays for all preparations, so it is left out.")
    why = ("the slow step of an input pipeline is often not the one that you suspect. Measure each step as "
           "it is really used, more than once, and with a clock that sees waiting. Then repair that one.")
    slow = True
    #: {in words: (where to look, {name: what is special about it})}; the slow one's place differs each time.
    cases = {
        "one transform waits for a disk": (WAITING, {
            "crop": {}, "flip": {"computes": 2}, "rotate": {"computes": 0, "waits": 2 * SLOW_MS}, "blur": {},
            "pad": {}}),
        "one prepares itself in its first call": (FIRST_CALL, {
            "blur": {"waits": SLOW_MS}, "pad": {}, "crop": {}, "flip": {"first": 20 * SLOW_MS},
            "rotate": {}}),
        "one enlarges the image for those after it": (HANDED_ON, {
            "crop": {"computes": 2}, "enlarge": {"computes": 2, "grows": 4}, "blur": {"computes": 2},
            "sharpen": {"waits": SLOW_MS / 16, "per_pixel": True}}),
    }

    def answer(transforms, image):
        import time

        seconds = [0] * len(transforms)
        for sample in range(6):
            passed = image
            for number, transform in enumerate(transforms):
                began = time.perf_counter()
                passed = transform(passed)
                if sample > 0:
                    seconds[number] += time.perf_counter() - began
        return transforms[seconds.index(max(seconds))]

    def observe(slowest_transform, case):
        spent, calls = Counter(), Counter()
        transforms = {name: _transform(name, spent, calls, **what) for name, what in case[1].items()}
        with _clocks_of(spent, getattr(inspect.unwrap(slowest_transform), "__globals__", {})):
            importlib.reload(timeit)  # it has taken its clock from `time` when it was imported
            found = slowest_transform([*transforms.values()], [0] * 4)
        elsewhere = f"a {type(found).__name__}, which is not in the list"
        return {
            "found": next((name for name, one in transforms.items() if one is found), elsewhere),
            "called again": sum(number > 1 for number in calls.values())}

    rules = (
        each(not_in_the_list, FUNCTION),
        each(found_a_quick_one, lambda case: case[0]),
    )
    mistakes = (
        ("perf_counter", "process_time", WAITING),
        ("max(seconds)", "min(seconds)", WAITING),
        (INDEX, "-1", WAITING),
        ("sample > 0", "True", FIRST_CALL),
        ((("range(6)", "range(1)"), ("sample > 0", "True")), FIRST_CALL),
        ("passed = transform(passed)", "transform(image)", HANDED_ON),
        (f"transforms[{INDEX}]", INDEX, FUNCTION),
    )
    stops = (
        ("range(6)", "range(500)", "TooLong", REPEATED),
        ("passed = image", "passed = passed if sample else image", "TooLong", REPEATED),
    )


hide_the_loading, shard_the_stream, slowest_transform = HideTheLoading(), ShardTheStream(), SlowestTransform()
