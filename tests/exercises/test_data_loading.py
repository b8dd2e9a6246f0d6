"""Lesson 03: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
hide_the_loading   workers started anew, quick on a quiet machine (starts are counted); samples read beforehand, or kept
                   by the workers (reads are counted); threads, wrapped datasets and batches in any container are right
shard_the_stream   items that equal their places, or differ from each other; items judged by `if item`; a reader who
                   gets nothing; lists and generators are as right as iterators
slowest_transform  a clock that sees no waiting, lucky under load (what clocks show is counted); always the same place;
                   any clock, any number of samples and any statistic are right
"""

import time
from time import perf_counter, process_time

import pytest

from lessons.data_loading import exercises as ex
from tests.answers import edited, edits, refused, right, wrong

pytestmark = pytest.mark.usefixtures("nothing_left")

# ---------------------------------------------------------------------------------------------------- hide_the_loading

LOADER = "DataLoader(dataset, batch_size=4, num_workers=4, persistent_workers=True)"
test_hide_the_loading = edits(
    ex.hide_the_loading,
    (", num_workers=4, persistent_workers=True", "",
     "with no workers, 1 at a time, samples were read while the device waited"),
    ("num_workers=4", "num_workers=1, prefetch_factor=16",
     "with 1 worker, 1 at a time, samples were read while the device computed: an epoch is 1.3 times as fast"),
    (", persistent_workers=True", "", "4 workers were started anew"),
    ("num_workers=4", "num_workers=32", "it has 32 workers"),
    ("batch_size=4", "batch_size=8", "a batch of 8 arrived"),
    ("batch_size=4", "batch_size=None", "a batch of 1 arrived"),
    ("persistent_workers=True", "persistent_workers=True, drop_last=True", "2 of the 50 samples never arrived"),
    ("persistent_workers=True", "persistent_workers=True, sampler=__import__('torch').utils.data.DistributedSampler("
     "dataset, 4, 0)", "workers share out its batches by themselves"),
    ("num_workers=4, persistent_workers=True", "prefetch_factor=8", "prefetch_factor"),
    (LOADER, f"list({LOADER})", "returned a list"),
    (LOADER, "dataset", "returned a SlowDisk"),
    ("DataLoader(dataset,", "DataLoader([dataset[index] for index in range(50)],", "not at all"),
    ("DataLoader(dataset,", "DataLoader(range(50),", "a sample with the value 0 arrived"),
    ("persistent_workers=True", "persistent_workers=True, sampler=[*range(48), 0, 1]", "came more than once"),
    ("persistent_workers=True", "persistent_workers=True, sampler=iter(range(50))",
     "in the second epoch, 50 of the 50 samples never arrived"),
    ("num_workers=4", "sampler=range(len(dataset) - 1), num_workers=4", "does the sampler give every sample"),
)


@wrong(ex.hide_the_loading, "came more than once")
def test_draws_with_replacement(dataset):
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0))
    return DataLoader(dataset, batch_size=4, num_workers=4, sampler=sampler, persistent_workers=True)


@wrong(ex.hide_the_loading, "each worker has to read a part of its own")
def test_every_worker_reads_all(dataset):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return (dataset[index] for index in range(len(dataset)))

    return DataLoader(Stream(), batch_size=4, num_workers=4, persistent_workers=True)


@wrong(ex.hide_the_loading, "in the second epoch, samples were read not at all")
def test_workers_keep_what_they_have_read(dataset):
    from functools import cache

    from torch.utils.data import DataLoader, Dataset

    class Kept(Dataset):
        __getitem__ = staticmethod(cache(dataset.__getitem__))
        __len__ = dataset.__len__

    return DataLoader(Kept(), batch_size=4, num_workers=4, persistent_workers=True, multiprocessing_context="fork")


@wrong(ex.hide_the_loading, "no workers")
def test_sleeps_no_more(dataset):
    from torch.utils.data import DataLoader

    time.sleep = lambda seconds: None
    return DataLoader(dataset, batch_size=4)


test_two_workers = right(ex.hide_the_loading)(edited(ex.hide_the_loading, ("num_workers=4", "num_workers=2")))


@right(ex.hide_the_loading)
def test_shuffled_in_dicts_out_of_order(dataset):
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

    return DataLoader(Subset(dataset, range(50)), batch_sampler=BatchSampler(RandomSampler(dataset), 4, False),
                      num_workers=3, persistent_workers=True, prefetch_factor=1, in_order=False,
                      collate_fn=lambda items: {"items": items})


@right(ex.hide_the_loading)
def test_spawned(dataset):
    from torch.utils.data import DataLoader

    return DataLoader(dataset, 4, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)


@right(ex.hide_the_loading)
def test_threads_in_one_worker(dataset):
    from concurrent.futures import ThreadPoolExecutor

    from torch.utils.data import DataLoader, Dataset

    class SideBySide(Dataset):
        def __len__(self):
            return len(dataset)

        def __getitems__(self, indices):
            with ThreadPoolExecutor(4) as pool:
                return list(pool.map(dataset.__getitem__, indices))

    return DataLoader(SideBySide(), batch_size=4, num_workers=1, persistent_workers=True)


# ---------------------------------------------------------------------------------------------------- shard_the_stream

DEALT = "islice(stream, rank * workers + worker, None, world_size * workers)"
test_shard_the_stream = edits(
    ex.shard_the_stream,
    ("    return ", "    yield from ()\n    return ", "nobody got anything"),
    (DEALT, "stream", "2 ranks, no workers, 13 items: item 40 was read 4 times instead of 2 times"),
    (DEALT, "islice(stream, rank, None, world_size)", "2 ranks, 2 workers each, 13 items: item 40 was read 4 times"),
    (DEALT, "islice(stream, worker, None, workers)", "2 ranks, no workers, 13 items: item 40 was read 4 times"),
    ("info.id", "info.worker_id", "worker process 0: AttributeError: 'WorkerInfo'"),
    (" if info else (1, 0)", "", "'NoneType' object has no attribute 'num_workers'"),
    (DEALT, "islice(stream, rank + worker, None, world_size * workers)", "2 workers each, 13 items: item 7 was read"),
    (DEALT, "islice(stream, worker * world_size + rank + 1, None, world_size * workers)", "item 40 was read once"),
    (DEALT, "(item for item in stream if hash(item) % (world_size * workers) == rank * workers + worker)",
     "by their place in the stream"),
    (DEALT, "(item for item in stream if item % (world_size * workers) == rank * workers + worker)",
     "by their place in the stream"),
    (DEALT, "sorted(set(stream))[rank * workers + worker::world_size * workers]", "once instead of 2 times"),
    (DEALT, f"filter(None, {DEALT})", "item 0 was read 0 times instead of once"),
    (DEALT, "(number for number, _ in enumerate(stream))", "is not among the items"),
    (DEALT, "[list(stream)]", "is not among the items"),
    (DEALT, "map(str, stream)", "`'40'` is not among the items"),
    (DEALT, "__import__('itertools').repeat(next(stream, 0))", "stream has 13 items, but"),
    (DEALT, "iter(lambda: next(stream, 0), None)", "stream has 13 items, but"),
    (DEALT, "len(list(stream))", "returned an int"),
    ("return ", "", "returned None"),
)


def dealt_in_blocks(stream, rank, world_size):
    info = ex.get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    items, readers, me = list(stream), world_size * workers, rank * workers + worker
    return items, len(items) // readers, readers, me


@wrong(ex.shard_the_stream, "items were read, but one reader got")
def test_the_remainder_to_the_last(stream, rank, world_size):
    items, each, readers, me = dealt_in_blocks(stream, rank, world_size)
    return items[me * each:] if me == readers - 1 else items[me * each:(me + 1) * each]


@wrong(ex.shard_the_stream, "item 88 was read 0 times instead of once")
def test_drops_the_remainder(stream, rank, world_size):
    items, each, _, me = dealt_in_blocks(stream, rank, world_size)
    return items[me * each:(me + 1) * each]


@wrong(ex.shard_the_stream, "get into each other's way")
def test_divides_twice(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    for number, item in enumerate(stream):
        if number % world_size == rank and number % workers == worker:
            yield item


@wrong(ex.shard_the_stream, "DataLoader worker")
def test_worker_that_dies(stream, rank, world_size):
    import os

    from torch.utils.data import get_worker_info

    if get_worker_info():
        os._exit(3)
    return [item for number, item in enumerate(stream) if number % world_size == rank]


@wrong(ex.shard_the_stream, 'raise KeyError("mine")')
def test_worker_that_raises_is_shown_with_the_learners_line(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    if get_worker_info():
        raise KeyError("mine")
    return [item for number, item in enumerate(stream) if number % world_size == rank]


def test_worker_that_hangs(monkeypatch):
    monkeypatch.setattr(type(ex.shard_the_stream), "timeout", 3)

    def shard_the_stream(stream, rank, world_size):
        from torch.utils.data import get_worker_info

        time.sleep(1000 if get_worker_info() else 0)
        return [item for number, item in enumerate(stream) if number % world_size == rank]

    refused(ex.shard_the_stream, shard_the_stream, "no result after")


@right(ex.shard_the_stream)
def test_blocks_of_neighbours(stream, rank, world_size):
    items, each, readers, me = dealt_in_blocks(stream, rank, world_size)
    more = len(items) % readers
    first = me * each + min(me, more)
    return tuple(items[first:first + each + (me < more)])


@right(ex.shard_the_stream)
def test_by_dividing_twice_the_right_way(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    mine = (item for number, item in enumerate(stream) if number % world_size == rank)
    yield from (item for number, item in enumerate(mine) if info is None or number % info.num_workers == info.id)


# --------------------------------------------------------------------------------------------------- slowest_transform

test_slowest_transform = edits(
    ex.slowest_transform,
    ("seconds.index(max(seconds))", "-1", "one transform waits for a disk: you found one that is quick"),
    ("seconds.index(max(seconds))", "2", "one prepares itself in its first call"),
    ("seconds.index(max(seconds))", "0", "one transform waits for a disk"),
    ((("range(6)", "range(1)"), ("sample > 0", "True")), "is it among what you measure?"),
    ("sample > 0", "True", "one prepares itself in its first call: you found one that is quick"),
    ("passed = transform(passed)", "transform(image)", "get what the one before it returned?"),
    ("passed = image", "passed = passed if sample else image", "whether each sample begins with `image` again"),
    ("perf_counter", "process_time", "by a clock that sees waiting"),
    ("perf_counter()", "thread_time_ns()", "`process_time` counts computing only"),
    ("max(seconds)", "min(seconds)", "you found one that is quick"),
    ("began = time.perf_counter()", "began = 0", "you found"),
    ("range(6)", "range(500)", "took longer than 2 s"),
    ("transforms[seconds.index(max(seconds))]", "seconds.index(max(seconds))", "returned an int"),
    ("transforms[seconds.index(max(seconds))]", "transforms[0].__name__", "returned a str"),
    ("transforms[seconds.index(max(seconds))]", "transforms", "returned a list"),
    ("transforms[seconds.index(max(seconds))]", "transforms.clear()", "returned None"),
)


@wrong(ex.slowest_transform, "by itself and not by its name")
def test_takes_a_name_for_the_function(transforms, image):
    seconds = dict.fromkeys((transform.__name__ for transform in transforms), 0)
    for sample in range(6):
        passed = image
        for transform in transforms:
            began = time.perf_counter()
            passed = transform(passed)
            seconds[transform.__name__] += (time.perf_counter() - began) * (sample > 0)
    slowest = max(seconds, key=seconds.get)
    return next(transform for transform in transforms if transform.__name__ == slowest)


@wrong(ex.slowest_transform, "never called")
def test_calls_nothing(transforms, image):
    return transforms[0]


@wrong(ex.slowest_transform, "took longer than 2 s")
def test_measures_for_ever(transforms, image):
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        transforms[0](image)
    return transforms[0]


@wrong(ex.slowest_transform, "one transform waits for a disk: you found one that is quick")
def test_a_clock_of_its_own_that_sees_computing_only(transforms, image):
    seconds = [0] * len(transforms)
    for sample in range(12):
        passed = image
        for number, transform in enumerate(transforms):
            began = process_time()
            passed = transform(passed)
            seconds[number] += (process_time() - began) * (sample > 0)
    return transforms[seconds.index(max(seconds))]


@right(ex.slowest_transform)
def test_median_of_each_for_as_long_as_there_is_time(transforms, image):
    import statistics

    end, seconds = time.time_ns() + 8e8, {transform: [] for transform in transforms}
    while time.time_ns() < end:
        passed = image
        for transform in transforms:
            began = time.monotonic()
            passed = transform(passed)
            seconds[transform].append(time.monotonic() - began)
    return max(transforms, key=lambda transform: statistics.median(seconds[transform]))


@right(ex.slowest_transform)
def test_one_after_the_other_with_timeit(transforms, image):
    import timeit

    seconds = []
    for transform in transforms:
        passed = transform(image)
        seconds.append(timeit.timeit(lambda transform=transform, image=image: transform(image), number=5))
        image = passed
    return transforms[seconds.index(max(seconds))]


@right(ex.slowest_transform)
def test_a_clock_of_its_own(transforms, image):
    assert perf_counter() - perf_counter() < -9e-6, "a clock that the check does not show: the load would decide"
    best = {}
    for _ in range(6):
        passed = image
        for transform in transforms:
            began = perf_counter()
            passed = transform(passed)
            took = perf_counter() - began
            best[transform] = min(took, best.get(transform, took))
    return max(best, key=best.get)


totals = {}


@wrong(ex.slowest_transform, "returned a function, which is not in the list")
def test_totals_that_are_kept_between_pipelines(transforms, image):
    for sample in range(5):
        value = image
        for transform in transforms:
            began = time.perf_counter()
            value = transform(value)
            if sample:
                totals[transform] = totals.get(transform, 0) + time.perf_counter() - began
    return max(totals, key=totals.get)


@wrong(ex.slowest_transform, "a clock that sees waiting")
def test_waits_no_more(transforms, image):
    import time
    from unittest import mock

    seconds = [0] * len(transforms)
    with mock.patch("time.sleep"):
        for _ in range(6):
            passed = image
            for number, transform in enumerate(transforms):
                began = time.perf_counter()
                passed = transform(passed)
                seconds[number] += time.perf_counter() - began
    return transforms[seconds.index(max(seconds))]
