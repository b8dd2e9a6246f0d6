"""The exercises of lesson 03: hide the loading, share a stream, find the slow transform."""

import os
import sys
import time
from collections import Counter

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "03_data_loading"


def _allow_quick_workers():
    """Let DataLoader fork its workers where that is safe and quick: nothing has computed yet in an exercise's rank."""
    import multiprocessing
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)


class _ByValue:
    """A function on its way to a worker: by value, since workers that are not forked cannot find the learner's cell."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)

    def __reduce__(self):
        import cloudpickle

        return _by_value, (cloudpickle.dumps(self.function),)


def _by_value(packet):
    import cloudpickle

    return _ByValue(cloudpickle.loads(packet))


# ---------------------------------------------------------------------------------------------------------------------

#: The samples of the first exercise; the batch size does not divide them.
SAMPLES, BATCH = 50, 4
#: Milliseconds that a sample waits for its disk, and that the device needs for a step.
READ_MS, STEP_MS = 8, 10
#: How much faster than without workers an epoch must be; two workers reach 2.4, one 1.3.
SPEED_UP = 1.8
MOST_WORKERS = 4


class SlowDisk(Dataset):
    """Each sample waits for a disk, which is asleep for READ_MS and burns no CPU."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(READ_MS / 1000)
        return index


class HideTheLoading(Exercise):
    title = "Hide the loading"
    task = (f"`dataset` has {SAMPLES} samples, each of which waits {READ_MS} ms for a disk; the device needs {STEP_MS} "
            f"ms for a batch of {BATCH}. Return a `DataLoader` that gives batches of {BATCH}, every sample once per "
            f"epoch, so that an epoch is at least {SPEED_UP} times as fast as without workers. You may use at most "
            f"{MOST_WORKERS} workers. Many epochs follow one another; the second one is timed.")
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
    world_sizes = (1,)
    timeout = 30

    @staticmethod
    def stub(dataset):
        raise NotImplementedError

    @staticmethod
    def answer(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)

    @wrong("no workers")
    def no_workers(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4)

    @wrong("not fast enough, with 1 worker")
    def one_worker(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=16)

    @wrong("it has 32 workers")
    def many_workers(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=32)

    @wrong("a batch of 8 arrived")
    def larger_batches(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=8, num_workers=4)

    @wrong("2 of the 50 samples never arrived")
    def drops_the_rest(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, num_workers=4, drop_last=True)

    @wrong("prefetch_factor")
    def prefetch_without_workers(dataset):
        from torch.utils.data import DataLoader

        return DataLoader(dataset, batch_size=4, prefetch_factor=8)

    @wrong("returned a list")
    def all_batches_in_a_list(dataset):
        from torch.utils.data import DataLoader

        return list(DataLoader(dataset, batch_size=4, num_workers=4))

    @wrong("not the one that it was given")
    def reads_everything_beforehand(dataset):
        from torch.utils.data import DataLoader

        return DataLoader([dataset[index] for index in range(len(dataset))], batch_size=4, num_workers=1)

    @wrong("some samples came more than once")
    def draws_with_replacement(dataset):
        from torch.utils.data import DataLoader, RandomSampler

        return DataLoader(dataset, batch_size=4, num_workers=4, sampler=RandomSampler(dataset, replacement=True))

    @staticmethod
    def probe(hide_the_loading):
        from torch.utils.data import DataLoader

        _allow_quick_workers()
        dataset = SlowDisk()
        loader = hide_the_loading(dataset)
        seen = {"type": type(loader).__name__}
        if not isinstance(loader, DataLoader):
            return seen
        seen |= {"loader": True, "dataset": loader.dataset is dataset, "workers": loader.num_workers}
        if not seen["dataset"] or loader.num_workers > MOST_WORKERS:
            return seen
        slow = _timed_epoch(DataLoader(dataset, batch_size=BATCH))[0]
        _timed_epoch(loader)  # starts the workers, which may take long where they are spawned
        fast, sizes, samples = _timed_epoch(loader)
        for _ in range(2):  # a slow epoch may be another program's fault: other programs only ever add time
            if slow / fast < SPEED_UP and loader.num_workers > 1:
                fast = min(fast, _timed_epoch(loader)[0])
        return seen | {"speed_up": slow / fast, "sizes": sizes, "samples": samples, "kept": loader.persistent_workers}

    def judge(self, observed):
        seen = observed[0]
        if "loader" not in seen:
            return not_yet(f"your function returned {_a(seen['type'])}", "a `DataLoader`",
                           "return the loader itself; the training loop will iterate over it")
        if not seen["dataset"]:
            return not_yet("the loader reads a dataset that is not the one that it was given",
                           "`DataLoader(dataset, …)`", "a real dataset is too large to be read beforehand")
        if seen["workers"] > MOST_WORKERS:
            return not_yet(f"it has {seen['workers']} workers", f"at most {MOST_WORKERS}",
                           "each one costs memory and time to start; how many are needed?")
        wrong_size = [size for size in seen["sizes"][:-1] if size != BATCH] or [s for s in seen["sizes"] if s > BATCH]
        if wrong_size:
            return not_yet(f"a batch of {wrong_size[0]} arrived", f"batches of {BATCH}",
                           "another batch size is another training; see lesson 06")
        times = Counter(seen["samples"])
        if max(times.values(), default=0) > 1:
            return not_yet("some samples came more than once", "each sample once per epoch", "the sampler")
        if len(times) < SAMPLES:
            return not_yet(f"{SAMPLES - len(times)} of the {SAMPLES} samples never arrived",
                           "each sample once per epoch", "what happens to the last, smaller batch?")
        if seen["speed_up"] < SPEED_UP:
            workers = seen["workers"]
            with_ = f"with {workers} worker{'s' * (workers != 1)}" if workers else "there are no workers"
            renewed = "" if seen["kept"] or not workers else " And are the workers started anew in every epoch?"
            return not_yet(f"not fast enough, {with_}", f"at least {SPEED_UP} times as fast as without workers",
                           "`num_workers`: who loads while the device computes, and how many at a time?" + renewed)
        return None


def _a(kind):
    return "None" if kind == "NoneType" else f"a{'n' * (kind[0] in 'AEIOUaeiou')} {kind}"


def _timed_epoch(loader):
    """Seconds of an epoch with a stand-in for the device; its batches' sizes; its samples. Stops in good time."""
    import torch

    sizes, samples = [], []
    began = time.perf_counter()
    for batch in loader:
        time.sleep(STEP_MS / 1000)
        batch = torch.as_tensor(batch).flatten().tolist()  # flatten: a loader without batches gives single samples
        sizes.append(len(batch))
        samples += batch
        if len(samples) > 2 * SAMPLES:
            break
    return time.perf_counter() - began, sizes, samples


hide_the_loading = HideTheLoading()

# ---------------------------------------------------------------------------------------------------------------------

#: By number of ranks: the numbers of workers to try. And the streams' lengths; the first case that goes wrong is shown.
WORKERS = {2: (0, 2), 3: (1,), 1: (3,)}
LENGTHS = (13, 6, 0)


class ShardTheStream(Exercise):
    title = "Each item of a stream exactly once"
    task = ("A training of `world_size` ranks reads one stream, and each rank's DataLoader may have workers. Your "
            "function is called wherever the stream is read: in every worker of every rank; with `num_workers=0`, in "
            "the rank itself. Return or `yield` the items of `stream`, an iterator, that are to be read **there**, so "
            "that each item is read exactly once in all, and no reader gets two items more than another. "
            "`get_worker_info()` of `torch.utils.data` says which worker asks; it is None where there are no workers.")
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
    timeout = 20

    @staticmethod
    def stub(stream, rank, world_size):
        raise NotImplementedError

    @staticmethod
    def answer(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return islice(stream, rank * workers + worker, None, world_size * workers)

    @wrong("2 ranks without workers, 13 items: item 0 was read 2 times")
    def everything_everywhere(stream, rank, world_size):
        return stream

    @wrong("2 ranks with 2 workers each, 13 items: item 0 was read 2 times")
    def by_rank_only(stream, rank, world_size):
        for number, item in enumerate(stream):
            if number % world_size == rank:
                yield item

    @wrong("2 ranks without workers, 13 items: item 0 was read 2 times")
    def by_worker_only(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return islice(stream, info.id, None, info.num_workers) if info else stream

    @wrong("'NoneType' object has no attribute 'num_workers'")
    def forgets_that_there_may_be_none(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return islice(stream, rank * info.num_workers + info.id, None, world_size * info.num_workers)

    @wrong("2 ranks with 2 workers each, 13 items: item 1 was read 2 times")
    def adds_rank_and_worker(stream, rank, world_size):
        from itertools import islice

        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        return islice(stream, rank + worker, None, world_size * workers)

    @wrong("items were read, but")
    def the_remainder_to_the_last(stream, rank, world_size):
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        items, readers, me = list(stream), world_size * workers, rank * workers + worker
        each = len(items) // readers
        return items[me * each:] if me == readers - 1 else items[me * each:(me + 1) * each]

    @wrong("get into each other's way")
    def divides_twice(stream, rank, world_size):
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        for number, item in enumerate(stream):
            if number % world_size == rank and number % workers == worker:
                yield item

    @wrong("item 12 was not read")
    def drops_the_remainder(stream, rank, world_size):
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        items, readers, me = list(stream), world_size * workers, rank * workers + worker
        each = len(items) // readers
        return items[me * each:(me + 1) * each]

    @wrong("stream has 13 items, but")
    def never_ends(stream, rank, world_size):
        for item in stream:
            while True:
                yield item

    @wrong("returned None")
    def forgets_to_return(stream, rank, world_size):
        from itertools import islice

        islice(stream, rank, None, world_size)

    @staticmethod
    def probe(shard_the_stream):
        from torch.utils.data import DataLoader

        _allow_quick_workers()
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        observed = []
        for workers in WORKERS[world_size]:
            for length in LENGTHS:
                loader = DataLoader(Stream(shard_the_stream, length, rank, world_size), batch_size=None,
                                    num_workers=workers)
                reads = list(loader)
                problem = next((problem for _, item, problem in reads if item is None), None)
                observed.append({"workers": workers, "length": length, "problem": problem,
                                 "items": [item for _, item, _ in reads],
                                 "readers": [reader for reader, _, _ in reads]})
                if problem or len(reads) > length:
                    break
        return observed

    def judge(self, observed):
        for by_rank in zip(*observed, strict=False):
            workers, length = by_rank[0]["workers"], by_rank[0]["length"]
            what = f" with {workers} worker{'s' * (workers != 1)} each" if workers else " without workers"
            case = f"{len(observed)} rank{'s' * (len(observed) != 1)}{what}, {length} items"
            for rank, seen in enumerate(by_rank):
                if seen["problem"]:
                    return not_yet(f"{case}: in rank {rank}, your function {seen['problem']}",
                                   "some of the stream's items", "what does it return or yield?")
            times = Counter(item for seen in by_rank for item in seen["items"])
            reads = Counter((rank, reader) for rank, seen in enumerate(by_rank) for reader in seen["readers"])
            counts = [reads[rank, reader] for rank in range(len(observed)) for reader in range(max(1, workers))]
            unknown = [item for item in times if item not in range(length)]
            missing = [item for item in range(length) if not times[item]]
            more = [item for item in range(length) if times[item] > 1]
            if max(counts) > length:
                problem, look = f"the stream has {length} items, but one reader got more", "a loop without end?"
            elif unknown:
                problem, look = f"{unknown[0]} is not among the items", "pass the items on as they are"
            elif more:
                problem = f"item {more[0]} was read {times[more[0]]} times"
                look = "what tells one reader from all others? Both its rank and its worker do"
            elif missing:
                problem = f"item {missing[0]} was not read"
                look = "which number has each reader, and where do the last items go?"
            elif max(counts) - min(counts) > 1:
                problem = f"all items were read, but one reader got {max(counts)}, another {min(counts)}"
                look = ("number all readers of all ranks, from 0 on, and deal the items out one by one: two "
                        "divisions, one by rank and one by worker, get into each other's way" if min(counts) == 0 else
                        "where the remainder goes: deal the items out one by one")
            else:
                continue
            return not_yet(f"{case}: {problem}{_who_read(by_rank, workers)}",
                           "each item is read exactly once, and readers differ by one item at most", look)
        return None


class Stream(IterableDataset):
    """Gives (reader, item, problem): what the learner's function gives this reader, and at most one item too much."""

    def __init__(self, share, length, rank, world_size):
        self.share, self.length, self.rank, self.world_size = _ByValue(share), length, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        reader = info.id if info else 0
        items = self.share(iter(range(self.length)), self.rank, self.world_size)
        if not hasattr(items, "__iter__"):
            yield reader, None, f"returned {_a(type(items).__name__)}"
            return
        for count, item in enumerate(items):
            if isinstance(item, bool) or not isinstance(item, int):
                yield reader, None, f"gave {_a(type(item).__name__)} instead of an item"
                return
            yield reader, item, None
            if count == self.length:
                return


def _who_read(by_rank, workers):
    """By reader, what it has read, for small cases."""
    lines = []
    for rank, seen in enumerate(by_rank):
        for reader in range(max(1, workers)):
            items = [item for item, by in zip(seen["items"], seen["readers"], strict=True) if by == reader][:14]
            name = f"rank {rank}, worker {reader}" if workers else f"rank {rank}"
            lines.append(f"\n{name} read {' '.join(map(str, items)) or 'nothing'}")
    return "".join(lines)


shard_the_stream = ShardTheStream()

# ---------------------------------------------------------------------------------------------------------------------

#: Milliseconds that a quick and the slow transform take in the third exercise.
QUICK_MS, SLOW_MS = 1, 16


class Transform:
    """A step of a pipeline. It sleeps for as long as such work would take, and makes an image of another size."""

    def __init__(self, name, ms=QUICK_MS, first_ms=0, grows=1, per_pixel=False):
        self.__name__, self.ms, self.first_ms, self.grows, self.per_pixel = name, ms, first_ms, grows, per_pixel
        self.calls = 0

    def __call__(self, image):
        self.calls += 1
        first, self.first_ms = self.first_ms, 0
        pixels = len(image) ** 2 / 16 if self.per_pixel else 1
        time.sleep((self.ms * pixels + first) / 1000)
        return [0] * (len(image) * self.grows)

    def __repr__(self):
        return self.__name__


def _pipelines():
    """(what is special about it, transforms, the slow one); the slow one's place is drawn anew each time."""
    import random

    chance = random.SystemRandom()
    names = ["crop", "flip", "rotate", "blur", "normalise"]

    def shuffled(*special):
        chance.shuffle(special := list(special))
        return special

    def plain():
        slow, first, last, *quick = shuffled(*names)  # neither the first nor the last: those are guessed too often
        between = shuffled(Transform(slow, SLOW_MS), *map(Transform, quick))
        return [Transform(first), *between, Transform(last)], slow

    def warming_up():
        slow, warm, *quick = shuffled(*names)
        rest = [Transform(slow, SLOW_MS), Transform(warm, first_ms=20 * SLOW_MS), *map(Transform, quick)]
        return shuffled(*rest), slow

    def growing():
        slow, *quick = shuffled(*names[:4])
        after = shuffled(Transform(slow, SLOW_MS / 16, per_pixel=True), *(Transform(name, 3) for name in quick[:2]))
        return [Transform(quick[2], 3), Transform("enlarge", 3, grows=4), *after], slow

    return [("one transform is slow", *plain()), ("one prepares itself in its first call", *warming_up()),
            ("one enlarges the image for those after it", *growing())]


class SlowestTransform(Exercise):
    title = "Find the slow transform"
    task = ("`transforms` is a list of functions; a sample goes through them one after another, each gets what the one "
            "before it returned, `image` goes into the first. Thousands of samples go through them. Measure, and "
            "return the one **function** of the list that takes most of that time. Each check draws new pipelines: "
            "some transforms need long for their first call only, others depend on the size of the image. You have a "
            "second per pipeline.")
    hints = (
        "Take the time before and after each call, and hand what one transform returns to the next one.",
        "One sample tells too little: send several through, and add up the times of each transform, without the first "
        "sample. Which clock counts waiting for a disk as well? `time.perf_counter()`.",
    )
    explanation = ("Everything happens in it: the transforms are timed as they are used, one after another, on several "
                   "samples, and the first sample, which pays for all preparations, is left out.")
    why = ("the slow step of an input pipeline is seldom the one that you suspect. Measure each step as it is really "
           "used, more than once, and by a clock that sees waiting too. Then repair that one; the others can wait.")
    world_sizes = (1,)
    timeout = 20

    @staticmethod
    def stub(transforms, image):
        raise NotImplementedError

    @staticmethod
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

    @wrong("one transform is slow")
    def suspects_the_last(transforms, image):
        return transforms[-1]

    @wrong("one prepares itself in its first call")
    def times_one_sample(transforms, image):
        import time

        seconds = []
        for transform in transforms:
            began = time.perf_counter()
            image = transform(image)
            seconds.append(time.perf_counter() - began)
        return transforms[seconds.index(max(seconds))]

    @wrong("one enlarges the image for those after it")
    def gives_each_the_first_image(transforms, image):
        import time

        seconds = []
        for transform in transforms:
            transform(image)
            began = time.perf_counter()
            for _ in range(5):
                transform(image)
            seconds.append(time.perf_counter() - began)
        return transforms[seconds.index(max(seconds))]

    @wrong("one transform is slow")
    def counts_computing_only(transforms, image):
        import time

        seconds = [0] * len(transforms)
        for _ in range(6):
            passed = image
            for number, transform in enumerate(transforms):
                began = time.process_time()
                passed = transform(passed)
                seconds[number] += time.process_time() - began
        return transforms[0 if max(seconds) < 0.1 else seconds.index(max(seconds))]

    @wrong("returned an int")
    def returns_its_number(transforms, image):
        return 2

    @wrong("returned a str")
    def returns_its_name(transforms, image):
        return transforms[0].__name__

    @wrong("took longer than")
    def measures_for_ever(transforms, image):
        import time

        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            transforms[0](image)
        return transforms[0]

    @staticmethod
    def probe(slowest_transform):
        observed = []
        for what, transforms, slow in _pipelines():
            given = list(transforms)
            began = time.perf_counter()
            found = slowest_transform(given, [0] * 4)
            observed.append({"what": what, "type": type(found).__name__, "known": any(found is t for t in transforms),
                             "right": getattr(found, "__name__", None) == slow, "seconds": time.perf_counter() - began,
                             "never": [t.calls for t in transforms].count(0)})
            if observed[-1]["seconds"] > 2:
                break
        return observed

    def judge(self, observed):
        for number, seen in enumerate(observed[0], start=1):
            case = f"pipeline {number} ({seen['what']})"
            if not seen["known"]:
                return not_yet(f"{case}: your function returned {_a(seen['type'])}",
                               "one of the functions in `transforms`",
                               "the `return`: not its number, its name or its time, but the function itself")
            if seen["seconds"] > 2:
                return not_yet(f"{case}: it took longer than 2 s", "a second is more than enough",
                               "how often you repeat")
            if not seen["right"]:
                return not_yet(f"{case}: you found one that is quick", "the function that takes most of the time",
                               (f"{seen['never']} of the transforms were never called" if seen["never"] else
                                "what is measured: each transform as it is used, several times, by a clock that sees "
                                "waiting too?"))
        return None


slowest_transform = SlowestTransform()
