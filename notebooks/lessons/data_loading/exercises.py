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
import numpy
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from helpers.exercises.engine import Exercise, not_yet, scratch
from helpers.instruments.calls import counted_calls

_TRUE = SimpleNamespace(sleep=time.sleep, cpu_seconds=time.process_time)  # whatever is patched


def _allow_quick_workers():
    """Let DataLoader fork its workers where that is safe and quick: nothing has computed yet in an exercise's rank."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)


#: The first exercise: the batch size does not divide the samples; no sample equals its place. Milliseconds that a
#: sample waits for its disk, and that the device needs for a step.
VALUES, BATCH, READ_MS, STEP_MS = [1000 - 3 * place for place in range(50)], 4, 8, 10
SPEED_UP, MOST_WORKERS = 1.8, 4


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
            _TRUE.sleep(ms / 1000)
        return value


class HideTheLoading(Exercise):
    title = "Hide the loading"
    task = (f"`dataset` has {len(VALUES)} samples, each of which waits {READ_MS} ms for a disk; the device needs "
            f"{STEP_MS} ms for a batch of {BATCH}. Return a `DataLoader` that gives batches of {BATCH}, every sample "
            f"once per epoch, so that an epoch is at least {SPEED_UP} times as fast as without workers. You may use at "
            f"most {MOST_WORKERS} workers. Many epochs follow one another: no worker is to be started after the first "
            "one. The samples do not fit into memory: they are read anew in each epoch.")
    hints = (
        f"How long does one process need for a batch? {BATCH} × {READ_MS} ms. The device takes one every {STEP_MS} ms. "
        "How many must load side by side?",
        "`DataLoader(dataset, batch_size=…, num_workers=…)`; and `persistent_workers=True` keeps the workers from one "
        "epoch to the next.",
    )
    explanation = ("Loading a batch takes about three times as long as the step, so three or four workers keep the "
                   "device busy. They sleep most of the time: it does not matter that there may be fewer cores.")
    why = ("a device that waits is paid for and does nothing. Once loading is hidden behind computing, an epoch takes "
           "as long as its steps, and more workers bring nothing.")
    timeout = 30

    def answer(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)

    def probe(hide_the_loading, case):
        _allow_quick_workers()
        with scratch() as folder:
            dataset = SlowDisk(Path(folder, "reads"))
            loader = hide_the_loading(dataset)
            seen = {"type": type(loader).__name__, "workers": getattr(loader, "num_workers", 0)}
            if not isinstance(loader, DataLoader) or seen["workers"] > MOST_WORKERS:
                return seen
            _batches(loader)
            dataset.log.write_text("")
            dataset.reads_here = 0
            with counted_calls(BaseProcess, "start") as calls:
                batches = _batches(loader)
            marks = [int(mark) for mark in dataset.log.read_text().split()]
        return seen | {"batches": batches, "read": Counter(mark for mark in marks if mark > 0),
                       "at once": max(accumulate(1 if mark > 0 else -1 for mark in marks), default=0),
                       "ahead": not dataset.reads_here, "started": len(calls["start"])}

    def judge(self, seen, case):
        seen, = seen
        workers = f"{seen['workers'] or 'no'} worker{'s' * (seen['workers'] != 1)}"
        if "batches" not in seen and seen["workers"] > MOST_WORKERS:
            return not_yet(f"it has {workers}", f"at most {MOST_WORKERS}",
                           "each one costs memory and time to start; how many are needed?")
        if "batches" not in seen:
            return not_yet(f"your function returned a {seen['type']}", "a `DataLoader`",
                           "return the loader itself; the training loop will iterate over it")
        came, read = Counter(chain.from_iterable(seen["batches"])), seen["read"]
        if came - Counter(VALUES):
            value = next(iter(came - Counter(VALUES)))
            return not_yet("some samples came more than once" if value in VALUES else
                           f"a sample with the value {value} arrived; the dataset has none",
                           "each sample once per epoch", "the sampler; what comes between the dataset and the batch? "
                           "Of an iterable dataset, each worker has to read a part of its own")
        odd = sorted((len(batch) for batch in seen["batches"] if len(batch) != BATCH), reverse=True)
        if len(odd) > 1 or any(size > BATCH for size in odd):
            return not_yet(f"a batch of {odd[0]} arrived", f"batches of {BATCH}",
                           "another batch size is another training")
        if len(came) < len(VALUES):
            return not_yet(f"in the second epoch, {len(VALUES) - len(came)} of the {len(VALUES)} samples never arrived",
                           "each sample once per epoch",
                           "what happens to the last, smaller batch?"
                           if len(VALUES) - len(came) == len(VALUES) % BATCH else
                           "does the sampler give every sample, and begin anew? A loader's workers share out its "
                           "batches by themselves")
        if read != Counter(VALUES):
            often = "more than once" if max(read.values(), default=0) > 1 else "not at all"
            return not_yet(f"in the second epoch, samples were read {often}", "each is read once, in each epoch",
                           "`DataLoader(dataset, …)`: a real dataset is too large to be read beforehand, or kept")
        reading = BATCH * READ_MS / seen["at once"]  # per batch; the step beside it is known: nothing is timed
        speed_up = (BATCH * READ_MS + STEP_MS) / (max(reading, STEP_MS) if seen["ahead"] else reading + STEP_MS)
        if speed_up < SPEED_UP:
            return not_yet(f"with {workers}, {seen['at once']} at a time, samples were read while the device "
                           f"{'computed' if seen['ahead'] else 'waited'}: an epoch is {speed_up:.1f} times as fast as "
                           "without workers", f"at least {SPEED_UP} times",
                           "`num_workers`: who loads while the device computes, and how many at a time?")
        if seen["started"]:
            return not_yet(f"in the second epoch, {seen['started']} workers were started anew", "none",
                           "`persistent_workers`: what keeps the workers of the first epoch?")
        return None


def _batches(loader):
    """The values in each batch of one epoch; stops in good time."""
    return [[value for leaf in tree_leaves(batch) for value in torch.as_tensor(leaf).flatten().tolist()]
            for batch in islice(loader, 2 * len(VALUES))]


#: The second exercise: items of which none equals its place, some are equal, and one is false.
NUMBERS = (40, 7, 16, 16, 0, 28, 40, 52, 16, 4, 64, 76, 88)


class ShardTheStream(Exercise):
    title = "Each item of a stream exactly once"
    task = ("A training of `world_size` ranks reads one stream, and each rank's DataLoader may have workers. Your "
            "function is called wherever the stream is read: in every worker of every rank; with `num_workers=0`, in "
            "the rank itself. Return or `yield` the items of `stream`, an iterator, that are to be read **there**, so "
            "that each item is read exactly once in all, and no reader gets two items more than another. Some items "
            "may be equal. `get_worker_info()` of `torch.utils.data` says which worker asks; it is None where there "
            "are no workers.")
    hints = (
        "How many readers are there in all, over all ranks? And which number has this one among them? Once you know "
        "both, deal the items out like cards.",
        "`info.num_workers` and `info.id` count the workers of *this* rank. Readers in all: `world_size * "
        "num_workers`; this one: `rank * num_workers + id`. Without workers, `num_workers` is 1 and `id` is 0.",
        "`itertools.islice(stream, first, None, step)` takes every `step`-th item of an iterator.",
    )
    explanation = ("All readers get consecutive numbers, and each takes every `readers`-th item. Every reader still "
                   "reads over the whole stream; with files, deal out the files in the same way.")
    why = ("every worker holds a copy of the dataset and reads all of it, unless told otherwise. Nothing fails then: "
           "an epoch only takes several times as long, and the training learns by heart what it sees again and again.")
    world_sizes = (2, 3, 1)
    cases = {"no workers, 13 items": (0, NUMBERS), "2 workers each, 13 items": (2, NUMBERS),
             "1 worker each, 7 items": (1, NUMBERS[:7]), "3 workers each, 7 items": (3, NUMBERS[:7]),
             "2 workers each, no items": (2, ())}

    def answer(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return islice(stream, rank * workers + worker, None, world_size * workers)

    def probe(shard_the_stream, case):
        _allow_quick_workers()
        workers, items = case
        return list(DataLoader(Stream(shard_the_stream, items), batch_size=None, num_workers=workers))

    def judge(self, seen, case):
        workers, items = case[0], [repr(item) for item in case[1]]
        read = {(rank, worker): [] for rank in range(len(seen)) for worker in range(max(1, workers))}
        for rank, reads in enumerate(seen):
            for worker, item in reads:
                if worker is None:
                    return not_yet(f"in rank {rank}, your function returned a {item}",
                                   "some of the stream's items", "what does it return or yield?")
                read[rank, worker].append(item)
        there, came = Counter(items), Counter(chain.from_iterable(read.values()))
        wrong = sorted([*(came - there), *(there - came)], key=there.__contains__)  # what is no item comes first
        counts = sorted(map(len, read.values()))
        if counts[-1] > len(items):
            problem, look = f"the stream has {len(items)} items, but one reader got more", "a loop without end?"
        elif items and not came:
            problem, look = "nobody got anything", ("in a function that has a `yield`, `return` only ends it: `yield "
                                                    "from` hands items on")
        elif wrong and wrong[0] not in there:
            problem, look = f"`{wrong[0]}` is not among the items", "pass the items on as they are"
        elif wrong:
            often, wanted = ({1: "once"}.get(number[wrong[0]], f"{number[wrong[0]]} times") for number in (came, there))
            problem = f"item {wrong[0]} was read {often} instead of {wanted}"
            look = ("what tells one reader from all others? Both its rank and its worker do, by numbers without a gap; "
                    "and a reader's next item is as many further on as there are readers" if came - there else
                    "which number has each reader, and where do the last items go? And equal items are items of their "
                    "own, and some are false, such as 0")
        elif counts[-1] - counts[0] > 1:
            problem = f"all items were read, but one reader got {counts[-1]}, another {counts[0]}"
            look = ("number all readers of all ranks, from 0 on, and deal the items out one by one, by their place in "
                    "the stream" + ": two divisions, one by rank and one by worker, get into each other's way" *
                    (counts[0] == 0))
        else:
            return None
        for (rank, worker), taken in read.items():
            problem += f"\nrank {rank}{f', worker {worker}' * bool(workers)} read {' '.join(taken[:14]) or 'nothing'}"
        return not_yet(problem, "each item is read exactly once, and readers differ by one item at most", look)


class Stream(IterableDataset):
    """Gives (worker, item as text) of what the answer gives here, up to one item too many; or (None, its type)."""

    def __init__(self, share, items):
        self.share, self.items = cloudpickle.dumps(share), items  # a worker that is not forked cannot find the cell

    def __iter__(self):
        info = get_worker_info()
        share, rank, world_size = pickle.loads(self.share), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        given = share((item for item in self.items), rank, world_size)
        if not hasattr(given, "__iter__"):
            yield None, type(given).__name__
            return
        for item in islice(given, len(self.items) + 1):
            yield info.id if info else 0, repr(item.item() if isinstance(item, numpy.generic) else item)[:40]


#: Milliseconds of the third exercise: for which a quick transform computes, and the slow one waits.
QUICK_MS, SLOW_MS = 0.3, 12
#: Seconds that transforms may take in one pipeline before the measuring is ended.
PATIENCE = 2


class TooLong(Exception):
    """The transforms of one pipeline have taken more than PATIENCE."""


class SlowestTransform(Exercise):
    title = "Find the slow transform"
    task = ("`transforms` is a list of functions; a sample goes through them one after another, each gets what the one "
            "before it returned, `image` goes into the first. Thousands of samples go through them. Measure, and "
            "return the one **function** of the list that takes most of that time. The check has pipelines of its own: "
            "some transforms need long for their first call only, others depend on the size of the image, or "
            "wait for a disk. You have a second per pipeline.")
    hints = (
        "Take the time before and after each call, and hand what one transform returns to the next one.",
        "One sample tells too little: send several through, and add up the times of each transform, without the first "
        "sample. Which clock counts waiting for a disk as well? `time.perf_counter()`.",
    )
    explanation = ("Everything happens in it: the transforms are timed as they are used, one after another, on several "
                   "samples, and the first sample, which pays for all preparations, is left out.")
    why = ("the slow step of an input pipeline is seldom the one that you suspect. Measure each step as it is really "
           "used, more than once, and by a clock that sees waiting too. Then repair that one; the others can wait.")
    #: {in words: (the slow one, where to look, {name: what is special about it})}; the place differs each time.
    cases = {
        "one transform waits for a disk": (
            "rotate", "is each call timed from just before it to just after it, several times, by a clock that sees "
            "waiting too, and milliseconds (`process_time` counts computing only, `perf_counter` all)? And is it "
            "`max`, not `min`?",
            {"crop": {}, "flip": {"computes": 2}, "rotate": {"computes": 0, "waits": 2 * SLOW_MS}, "blur": {},
             "pad": {}}),
        "one prepares itself in its first call": (
            "blur", "the first call says nothing about thousands: is it among what you measure?",
            {"blur": {"waits": SLOW_MS}, "pad": {}, "crop": {}, "flip": {"first": 20 * SLOW_MS}, "rotate": {}}),
        "one enlarges the image for those after it": (
            "sharpen", "does each transform get what the one before it returned?",
            {"crop": {"computes": 2}, "enlarge": {"computes": 2, "grows": 4}, "blur": {"computes": 2},
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

    def probe(slowest_transform, case):
        (slow, look, special), spent, calls = case, Counter(), Counter()
        transforms = [_transform(name, spent, calls, **what) for name, what in special.items()]
        try:
            with _clocks_of(spent, getattr(inspect.unwrap(slowest_transform), "__globals__", {})):
                importlib.reload(timeit)  # it has taken its clock from `time` when it was imported
                found = slowest_transform(list(transforms), [0] * 4)
        except TooLong:
            return not_yet(f"the transforms took longer than {PATIENCE} s", "a second is more than enough",
                           "how often you repeat, and whether each sample begins with `image` again")
        name = next((name for name, one in zip(special, transforms, strict=True) if one is found), None)
        if name is None:
            return not_yet(f"your function returned a {type(found).__name__}, which is not in the list",
                           "one of the functions in `transforms`",
                           "the `return`: not its number, its name or its time, but the function itself")
        if name != slow:
            never = len(transforms) - len(calls)
            once = ", and each was called only once" * (not never and max(calls.values()) == 1)
            return not_yet(f"you found one that is quick{once}", "the function that takes most of the time, by itself "
                           "and not by its name: all have the same",
                           f"{never} of the transforms were never called" if never else look)
        return None


def _transform(name, spent, calls, computes=QUICK_MS, waits=0, first=0, grows=1, per_pixel=False):
    """A step of a pipeline: computes and waits for so many milliseconds, and keeps what it has `spent`."""

    def transform(image):
        pixels = len(image) ** 2 / 16 if per_pixel else 1
        computing, waiting = computes / 1000, (waits * pixels + first * (name not in calls)) / 1000
        calls[name] += 1
        spent["computing"] += computing
        if spent.total() > PATIENCE:
            raise TooLong
        end = _TRUE.cpu_seconds() + computing
        while _TRUE.cpu_seconds() < end:
            pass
        time.sleep(waiting)
        return [0] * (len(image) * grows)

    return transform


@contextlib.contextmanager
def _clocks_of(spent, names):
    """Patch all clocks of `time`: they show what the transforms have spent, whatever else runs on this machine.

    And its `sleep`: to wait counts only where it is done.
    `names` are the globals of the learner's function, which may have clocks by names of their own.
    """

    def clock(kinds, unit):
        def now():
            spent["looking"] += 1e-5  # so that a loop which waits for a moment gets there
            return unit * 1000 + type(unit)(unit * sum(spent[kind] for kind in kinds))  # all begin at 1000 s

        return now

    def sleep(seconds):
        spent["waiting"] += seconds
        _TRUE.sleep(seconds)

    kinds = dict.fromkeys(("perf_counter", "monotonic", "time"), ("computing", "waiting", "looking"))
    kinds |= dict.fromkeys(("process_time", "thread_time"), ("computing",))
    clocks = {name + ns: clock(kinds[name], unit) for name in kinds for ns, unit in (("", 1.0), ("_ns", 10**9))}
    true = {getattr(time, name): patched for name, patched in clocks.items()}
    own = {name: true[value] for name, value in names.items() if type(value) is BuiltinFunctionType and value in true}
    with mock.patch.multiple(time, sleep=sleep, **clocks), mock.patch.dict(names, own):
        yield


hide_the_loading, shard_the_stream, slowest_transform = HideTheLoading(), ShardTheStream(), SlowestTransform()
