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


test_three_workers = right(ex.hide_the_loading)(edited(ex.hide_the_loading, ("num_workers=4", "num_workers=3")))


@right(ex.hide_the_loading)
def test_shuffled_in_dicts_out_of_order(dataset):
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

    batches = BatchSampler(RandomSampler(dataset), 4, False)
    return DataLoader(Subset(dataset, range(50)), batch_sampler=batches, num_workers=3,
                      persistent_workers=True, prefetch_factor=1, in_order=False,
                      collate_fn=lambda items: {"items": items})


def in_threads(dataset, **workers):
    from concurrent.futures import ThreadPoolExecutor

    from torch.utils.data import DataLoader, Dataset

    class InThreads(Dataset):
        def __len__(self):
            return len(dataset)

        def __getitems__(self, indices):
            with ThreadPoolExecutor(4) as threads:
                return list(threads.map(dataset.__getitem__, indices))

    return DataLoader(InThreads(), batch_size=4, **workers)


@wrong(ex.hide_the_loading, "while the device waited: an epoch is 2.3 times as fast")
def test_threads_read_and_no_process_is_started(dataset):
    return in_threads(dataset)


@right(ex.hide_the_loading)
def test_threads_of_one_worker(dataset):
    return in_threads(dataset, num_workers=1, persistent_workers=True)


@right(ex.hide_the_loading)
def test_tries_others_before(dataset):
    from torch.utils.data import DataLoader

    for workers in (1, 2):
        for _ in DataLoader(dataset, batch_size=4, num_workers=workers):
            pass
    return DataLoader(dataset, batch_size=4, num_workers=3, persistent_workers=True)


@wrong(ex.hide_the_loading, "processes: 8")
def test_processes_of_its_own(dataset):
    from concurrent.futures import ProcessPoolExecutor

    from torch.utils.data import DataLoader, Dataset

    pool = ProcessPoolExecutor(8)

    class InProcesses(Dataset):
        def __len__(self):
            return len(dataset)

        def __getitems__(self, indices):
            return list(pool.map(dataset.__getitem__, indices))

    return DataLoader(InProcesses(), batch_size=4)


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


@right(ex.shard_the_stream)
def test_every_second_row_is_dealt_out_backwards(stream, rank, world_size):
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    readers, reader = world_size * workers, worker * world_size + rank
    for at, item in enumerate(stream):
        row, column = divmod(at, readers)
        if reader == (readers - 1 - column if row % 2 else column):
            yield item


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


@right(ex.slowest_transform)
def test_what_each_adds_to_those_before_it(transforms, image):
    from itertools import pairwise

    def seconds_of(first):
        began = time.monotonic()
        for _ in range(2):
            passed = image
            for transform in transforms[:first]:
                passed = transform(passed)
        return time.monotonic() - began

    seconds_of(len(transforms))
    sums = [seconds_of(number) for number in range(len(transforms) + 1)]
    added = [after - before for before, after in pairwise(sums)]
    return transforms[added.index(max(added))]


@wrong(ex.slowest_transform, "changed: `image`")
def test_each_image_in_the_place_of_the_one_before(transforms, image):
    seconds = {}
    for transform in transforms:
        passed = transform(image)
        began = time.perf_counter()
        transform(image)
        seconds[transform] = time.perf_counter() - began
        image[:] = passed
    return max(seconds, key=seconds.get)
