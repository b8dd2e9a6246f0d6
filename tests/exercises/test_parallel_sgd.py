"""Lesson 02: answers that are right in another style, and wrong ones that no row of the tables can be."""

import time

from lessons.parallel_sgd import exercises as ex
from tests.answers import edits, right, wrong


@right(ex.split)
def test_the_first_ones_take_the_remainder(n_samples, n_workers):
    if n_workers < 1 or n_workers > n_samples:
        raise ValueError
    size, more = divmod(n_samples, n_workers)
    shards = []
    for rank in range(n_workers):
        first = shards[-1].stop if shards else 0
        shards.append(range(first, first + size + (rank < more)))
    return shards


test_aggregate = edits(
    ex.aggregate,
    ("    stacked",
     "    if len(states) == 1:\n        return {n: t[...] for n, t in states[0].items()}\n    stacked",
     "1 worker: in a worker's memory: ['0.bias'"),
    ("    return", "    states.clear()\n    return", "hold what they held"),
    ("    stacked", "    states.reverse()\n    stacked", "other entries: ['`states[0]`', '`states[1]`']"),
    ("    return", "    states[-1]['spare'] = states[-1]['0.weight']\n    return", "other entries: ['`states[1]`']"),
    (".to(tensor.dtype)", "", "`kind`['0.bias'] is 'torch.float64"),
)


@right(ex.aggregate)
def test_with_floor_division(states):
    def mean(tensors):
        if tensors[0].is_floating_point():
            return sum(tensors) / len(tensors)
        return (sum(tensor.long() for tensor in tensors) // len(tensors)).to(tensors[0].dtype)

    return {name: mean([state[name] for state in states]) for name in states[-1]}


test_run_epoch = edits(
    ex.run_epoch,
    ("range(n_workers)", "range(3)", "5 workers: `ranks started` is '0, 1, 2'"),
)


@right(ex.run_epoch)
def test_asks_until_all_have_ended(n_workers, pull_down, start, aggregate):
    pull_down()
    processes = {start(rank) for rank in reversed(range(n_workers))}
    while any(process.is_alive() for process in processes):
        time.sleep(0.01)
    assert all(process.exitcode == 0 for process in processes)
    aggregate()


@right(ex.run_epoch)
def test_joins_in_threads_that_are_joined(n_workers, pull_down, start, aggregate):
    from concurrent.futures import ThreadPoolExecutor

    pull_down()
    with ThreadPoolExecutor() as pool:
        for rank in range(n_workers):
            pool.submit(start(rank).join)
    aggregate()


@wrong(ex.run_epoch, "for which processes do you call `join()`?")
def test_joins_in_threads_that_nobody_joins(n_workers, pull_down, start, aggregate):
    import threading

    pull_down()
    for process in [start(rank) for rank in range(n_workers)]:
        threading.Thread(target=process.join, daemon=True).start()
    aggregate()


@wrong(ex.train_epoch, "after the last batch? A pause")
def test_at_the_barrier_before_it_trains(batches, step, barrier):
    import threading

    waiting = threading.Thread(target=barrier)
    waiting.start()
    for batch in batches:
        step(batch)
    waiting.join()


@wrong(ex.train_epoch, "join a thread of your own")
def test_threads_that_nobody_joins(batches, step, barrier):
    import threading

    for batch in batches:
        threading.Thread(target=step, args=(batch,)).start()
    barrier()


@right(ex.train_epoch)
def test_a_barrier_in_a_thread_that_is_joined(batches, step, barrier):
    import threading

    for batch in batches:
        step(batch)
    waiting = threading.Thread(target=barrier)
    waiting.start()
    waiting.join()


@right(ex.train_epoch)
def test_lockstep_as_long_as_it_goes(batches, step, barrier):
    import torch
    import torch.distributed as dist

    most = torch.tensor(len(batches))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    for number in range(most):
        if number < len(batches):
            step(batches[-1 - number])
        barrier()


@wrong(ex.train_epoch, "may wait for other processes")
def test_with_a_collective_of_its_own(batches, step, barrier):
    import torch.distributed as dist

    for batch in batches:
        step(batch)
    dist.all_gather_object([None] * dist.get_world_size(), "done")
