"""Lesson 03: answers in other styles, and wrong ones that no row can be."""

import time
from time import perf_counter

import pytest

from lessons.data_loading import exercises as ex
from tests.answers import edited, edits, right, wrong

pytestmark = pytest.mark.usefixtures("nothing_left")


@wrong(ex.hide_the_loading, "came more than once: 50")
def test_every_worker_reads_all(dataset):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return (dataset[index] for index in range(len(dataset)))

    return DataLoader(Stream(), batch_size=4, num_workers=4, persistent_workers=True)


test_two_workers = right(ex.hide_the_loading)(edited(ex.hide_the_loading, ("num_workers=4", "num_workers=2")))


@right(ex.hide_the_loading)
def test_shuffled_in_dicts_out_of_order(dataset):
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

    batches = BatchSampler(RandomSampler(dataset), 4, False)
    return DataLoader(Subset(dataset, range(50)), batch_sampler=batches, num_workers=3,
                      persistent_workers=True, prefetch_factor=1, in_order=False,
                      collate_fn=lambda items: {"items": items})


test_shard_the_stream = edits(
    ex.shard_the_stream,
    (" if info else (1, 0)", "", "'NoneType' object has no attribute 'num_workers'"),
    ("info.id", "info.worker_id", "worker process 0: AttributeError: 'WorkerInfo'"),
)


@right(ex.shard_the_stream)
def test_by_dividing_twice_the_right_way(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    mine = (item for number, item in enumerate(stream) if number % world_size == rank)
    yield from (item for number, item in enumerate(mine) if number % workers == worker)


@wrong(ex.shard_the_stream, "one reader got 7, another 0")
def test_by_dividing_twice_the_wrong_way(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    return (item for at, item in enumerate(stream) if at % world_size == rank and at % workers == worker)


@right(ex.slowest_transform)
def test_median_of_each_for_as_long_as_there_is_time(transforms, image):
    import statistics

    end, seconds = time.time_ns() + 3e8, {transform: [] for transform in transforms}
    while time.time_ns() < end:
        passed = image
        for transform in transforms:
            began = time.monotonic()
            passed = transform(passed)
            seconds[transform].append(time.monotonic() - began)
    return max(transforms, key=lambda transform: statistics.median(seconds[transform]))


@right(ex.slowest_transform)
def test_a_clock_of_its_own(transforms, image):
    assert perf_counter() - perf_counter() < -9e-6, "a clock that the check does not show"
    best = {}
    for _ in range(6):
        passed = image
        for transform in transforms:
            began = perf_counter()
            passed = transform(passed)
            took = perf_counter() - began
            best[transform] = min(took, best.get(transform, took))
    return max(best, key=best.get)
