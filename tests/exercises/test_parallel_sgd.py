"""Lesson 02: answers that are right in another style, and wrong ones that no row of the tables can be."""

import time

from lessons.parallel_sgd import exercises as ex
from tests.answers import edits, right, wrong

test_split = edits(
    ex.split,
    ("if not 1 <= n_workers", "if not 1 < n_workers", "ValueError: given 5 samples among 1 worker: cannot split"),
    ("strict=True)]", "strict=True)],", "return a list of ranges"),
)


class NotEnough(ValueError):
    pass


@right(ex.split)
def test_another_error_of_the_kind(n_samples, n_workers):
    if n_workers < 1 or n_workers > n_samples:
        raise NotEnough
    ends = [(n_samples // n_workers) * (1 + rank) for rank in range(n_workers)]
    ends[-1] = n_samples
    shards = []
    for end in ends:
        shards.append(range(shards[-1].stop if shards else 0, end))
    return shards


test_aggregate = edits(
    ex.aggregate,
    ("    stacked", "    if len(states) == 1:\n        return {n: t[...] for n, t in states[0].items()}\n    stacked",
     "1 worker: in a worker's memory: ['0.bias'"),
    ("    return", "    states.clear()\n    return", "none of those in `states` is gone"),
    (".to(tensor.dtype)", "", "`kind`['0.bias'] is 'torch.float64"),
    (".to(tensor.dtype)", ".to(tensor.dtype).tolist()", "missing: ['0.bias'"),
)


@right(ex.aggregate)
def test_into_a_deep_copy(states):
    import copy

    mean = copy.deepcopy(states[0])
    for name, tensor in mean.items():
        total = sum(state[name].double() for state in states)
        tensor.copy_((total / len(states)).to(tensor.dtype))
    return mean


@right(ex.aggregate)
def test_with_floor_division(states):
    def mean(tensors):
        if tensors[0].is_floating_point():
            return sum(tensors) / len(tensors)
        return (sum(tensor.long() for tensor in tensors) // len(tensors)).to(tensors[0].dtype)

    return {name: mean([state[name] for state in states]) for name in states[-1]}


WAITS = "        process.join()\n"

test_run_epoch = edits(
    ex.run_epoch,
    (WAITS, "        process.join(10)\n", "`join` with a limit, is only a guess"),
    (WAITS, "        process.is_alive()\n", "still training: [0, 1, 2]"),
    ("in processes:", "in processes[:-1]:", "still training: [2]"),
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
def test_a_thread_for_each(n_workers, pull_down, start, aggregate):
    from concurrent.futures import ThreadPoolExecutor

    pull_down()
    with ThreadPoolExecutor(n_workers) as threads:
        list(threads.map(lambda rank: start(rank).join(), range(n_workers)))
    aggregate()


@right(ex.run_epoch)
def test_waits_for_all_at_once(n_workers, pull_down, start, aggregate):
    from multiprocessing.connection import wait

    pull_down()
    sentinels = [process.sentinel for process in [start(rank) for rank in range(n_workers)]]
    while sentinels:
        for sentinel in wait(sentinels):
            sentinels.remove(sentinel)
    aggregate()


test_train_epoch = edits(
    ex.train_epoch,
    ("    barrier", "    import time; time.sleep(0.1) #", "after its last batch it waits for nobody"),
    ("    for batch", "    if not batches:\n        return\n    for batch", "the last rank's: rank 0 had returned"),
)


@wrong(ex.train_epoch, "a thread of your own is to be joined")
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
def test_in_a_pool_that_is_waited_for(batches, step, barrier):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(step, batches))
    barrier()


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


@right(ex.train_epoch)
def test_with_a_collective_of_its_own(batches, step, barrier):
    import torch.distributed as dist

    while batches:
        step(batches.pop())
    dist.all_gather_object([None] * dist.get_world_size(), "done")


@right(ex.train_epoch)
def test_to_one_and_back(batches, step, barrier):
    import torch
    import torch.distributed as dist

    for batch in batches:
        step(batch)
    done = torch.ones(1)
    dist.reduce(done, dst=0)
    dist.broadcast(done, src=0)


@right(ex.train_epoch)
def test_with_a_monitored_barrier(batches, step, barrier):
    import torch.distributed as dist

    for batch in batches:
        step(batch)
    dist.monitored_barrier()


LOAD = "model.load_state_dict(global_model.state_dict())"

test_pull_down = edits(
    ex.pull_down,
    (LOAD, "import copy; local_models[:] = [copy.deepcopy(global_model) for _ in local_models]", "is 11001.0"),
    (LOAD, "half = {n: t.half() for n, t in global_model.state_dict().items()}; model.load_state_dict(half)",
     "`local_models`[0]['0.weight'][0] is 10000.0"),
    (LOAD, "for mine, its in zip(model.parameters(), global_model.parameters()):\n            "
     "mine.requires_grad = False\n            mine.copy_(its)", "part of the graph: ['0.weight'"),
    ((("    for model", "    its = iter(global_model.state_dict().items())\n    for model"),
      ("global_model.state_dict())", "dict(its), strict=False)")), "An iterator gives each thing once"),
)


@wrong(ex.pull_down, "of worker 1 is in the memory of worker 0")
def test_shares_among_the_workers(global_model, local_models):
    import copy

    state = copy.deepcopy(global_model.state_dict())
    for model in local_models:
        model.load_state_dict(state, assign=True)


@right(ex.pull_down)
def test_parameters_and_buffers(global_model, local_models):
    from itertools import chain

    for model in local_models:
        for mine, its in zip(chain(model.parameters(), model.buffers()),
                             chain(global_model.parameters(), global_model.buffers()), strict=True):
            mine.data[...] = its.data


@right(ex.pull_down)
def test_frozen_while_it_copies(global_model, local_models):
    for model in local_models:
        for mine, its in zip(model.parameters(), global_model.parameters(), strict=True):
            mine.requires_grad_(False).copy_(its.detach()).requires_grad_()
        for mine, its in zip(model.buffers(), global_model.buffers(), strict=True):
            mine.copy_(its)
