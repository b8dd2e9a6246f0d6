"""Lesson 02: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
split         an error given back and not raised; a type other than the task's; a subclass of ValueError is one
aggregate     lost digits and sums that overflow; emptied lists; one worker's own tensors, and views of them
choose_k      fits that are exact, or not whole; only one refusal tried; a slow search has its time, an endless one not
run_epoch     pairs, always four, all joined but the last; waiting by guess; threads and questions wait as well as join
train_epoch   a pause in place of a barrier; a barrier's error swallowed; batches may come in any order
pull_down     buffers; other tensors in place of new values; workers that share with each other; the wrong direction
"""

import time

from lessons.parallel_sgd import exercises as ex
from tests.answers import edits, right, wrong

CHECKED = "    if not 1 <= n_workers <= n_samples:\n"
RANGES = "[range(a, b) for a, b in zip(starts, [*starts[1:], n_samples], strict=True)]"

test_split = edits(
    ex.split,
    ("[*starts[1:], n_samples]", "[start + size for start in starts]", "sample 9 is in no shard"),
    ("n_samples]", "n_samples + 1]", "sample 10 is in 1 shard"),
    (CHECKED, "    if False:\n", "it raised ZeroDivisionError"),
    (CHECKED, "    if n_workers == 0:\n", "3 samples among 4 workers: it returned"),
    (CHECKED, "    if n_workers < 1:\n", "3 samples among 4 workers"),
    (CHECKED, "    if n_workers > n_samples:\n", "asked for no worker at all"),
    ("    raise ValueError(", "    return ValueError(", "it returned `ValueError("),
    ("    raise ValueError(", "    raise IndexError(", "it raised IndexError"),
    (CHECKED, "    if not 1 < n_workers <= n_samples:\n", "5 samples among 1 worker: it raised ValueError: cannot"),
    (RANGES, "[range(a, min(a - (-n_samples // n_workers), n_samples)) for a in "
     "range(0, n_samples, -(-n_samples // n_workers))]", "lengths 4, 4, 2"),
    (RANGES, "[range(r * n_samples // n_workers, (r + 1) * n_samples // n_workers) for r in range(n_workers)]",
     "lengths 3, 4, 4"),
    (RANGES, "[slice(a, a + size) for a in starts]", "`[slice(0, 3, None)"),
    (RANGES, RANGES.replace("[range", "(range").replace("True)]", "True))"), "`<generator"),
    (RANGES, f"tuple({RANGES})", "`(range(0, 3), "),
    (RANGES, "[range(rank, n_samples, n_workers) for rank in range(n_workers)]", "out of order"),
    ("range(a, b)", "range(a, b + (b < n_samples))", "sample 3 is in 2 shards"),
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


STACKED = "{name: torch.stack([state[name] for state in states]) for name in states[0]}"
MEAN = "tensor.double().mean(0).to(tensor.dtype)"

test_aggregate = edits(
    ex.aggregate,
    (".mean(0)", ".sum(0)", "the sum"),
    (".mean(0)", ".sum(0).div(2)", "3 workers"),
    (".to(tensor.dtype)", "", "came back as float64"),
    (MEAN, "tensor.double().mean(0).round().to(tensor.dtype)", "its fraction is cut off"),
    (MEAN, "sum(one / len(states) for one in tensor).to(tensor.dtype)", "when all are added"),
    (MEAN, "sum(one.double() / len(states) for one in tensor).to(tensor.dtype)", "when all are added: thirds"),
    (MEAN, f"{MEAN} if tensor.is_floating_point() else tensor[0].clone()", "worker 0's own"),
    ("stacked.items()", "stacked.items() if tensor.is_floating_point()", "is missing"),
    (".double()", ".float()", "which has lost its digits"),
    (MEAN, "tensor.bfloat16().mean(0).to(tensor.dtype)", "lost its digits"),
    (MEAN, "tensor.long().double().mean(0).to(tensor.dtype)", "lost its digits"),
    (MEAN, "tensor.byte().double().mean(0).to(tensor.dtype)", "`scale` is ["),
    (MEAN, "tensor.double().mean(0).to(torch.uint8)", "came back as uint8"),
    (MEAN, "tensor.double().mean(0).long()", "came back as int64"),
    (MEAN, "(sum(tensor) / len(states)).to(tensor.dtype)", "`uint8` ends at 255"),
    (MEAN, f"{MEAN}.tolist()", "came back as a list"),
    (".mean(0)", ".mean(-1)", "along which dimension is it?"),
    (MEAN, "tensor.double().mean(0, keepdim=True).to(tensor.dtype)", "of shape (1, 3"),
    (MEAN, f"{MEAN} * (1 if 'int' in str(tensor.dtype) else float('nan'))", "is [nan"),
    (STACKED, "{name: states[0][name].grad for name in states[0]}", "NoneType"),
    ((("return {name", "return list({name"), ("items()}", "items()}.values())")), "it returned a list"),
    ("    stacked", "    if len(states) == 1:\n        return states[0]\n    stacked", "memory with worker 0"),
    ("    stacked", "    if len(states) == 1:\n        return {n: t[...] for n, t in states[0].items()}\n    stacked",
     "memory with worker 0"),
    ("    return", "    states.clear()\n    return", "`states` has changed"),
    ("    return", "    for state in states:\n        state.clear()\n    return", "`states` has changed"),
    ("tensor.double().mean(0).to(tensor.dtype)", "tensor.mean(0) if tensor.is_floating_point() else tensor.sum(0)",
     "and is the sum"),
)


@wrong(ex.aggregate, "the models of the workers have changed")
def test_adds_into_the_first(states):
    mean = states[0]
    for state in states[1:]:
        for name in mean:
            mean[name] += state[name]
    for name in mean:
        mean[name] = (mean[name] / len(states)).to(mean[name].dtype)
    return mean


@wrong(ex.aggregate, "came back as None")
def test_sends_gradients(states):
    return {name: tensor.grad for name, tensor in states[0].items()}


@wrong(ex.aggregate, "what you wrote into a copy is only there")
def test_writes_into_a_copy(states):
    import copy

    import torch

    mean = copy.deepcopy(states[0])
    for name, tensor in copy.deepcopy(mean).items():
        tensor.copy_(torch.stack([state[name].double() for state in states]).mean(0))
    return mean


@wrong(ex.aggregate, "3 workers")
def test_averages_pair_by_pair(states):
    mean = states[0]
    for state in states[1:]:
        mean = {name: ((mean[name].double() + state[name]) / 2).to(state[name].dtype) for name in state}
    return {name: tensor.clone() for name, tensor in mean.items()}


@wrong(ex.aggregate, "whether every worker counts the same")
def test_counts_one_twice(states):
    return {name: (sum(state[name].double() for state in [*states, states[0]]) / (len(states) + 1)).to(tensor.dtype)
            for name, tensor in states[0].items()}


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


FITS = "steps * step_ms + -(-steps // k) * sync_ms <= budget_ms"

test_choose_k = edits(
    ex.choose_k,
    ("-(-steps // k)", "steps // k", "3 averagings 15"),
    ("range(1, steps + 1)", "range(steps, 0, -1)", "would fit as well"),
    (FITS, "steps * step_ms <= budget_ms", "does not fit"),
    ("<=", "<", "k = 5 would fit as well"),
    ("-(-steps // k)", "(steps // k + 1)", "k = 5 would fit as well: it averages 2 times and takes 30 milliseconds"),
    ('    raise ValueError("not even one averaging fits into the budget")', "    return None", "it returned None"),
    ("raise ValueError", "return ValueError", "what is returned stops nobody"),
    ("return k", "return float(k)", "it returned 5.0"),
    ("return k", "return k == 1 or k", "it returned True"),
    ("for k in range(1, steps + 1):", "k = 1\n    while True:", "no answer after 5 s of computing"),
    ("range(1, steps + 1)", "range(1, steps)", "which takes 30 milliseconds"),
    ("range(1, steps + 1)", "range(1, min(steps, 100) + 1)", "k = 250, which takes 1040 milliseconds"),
    ("    for k", "    step_ms, sync_ms, budget_ms = int(step_ms), int(sync_ms), int(budget_ms)\n    for k",
     "are times cut to whole numbers?"),
    ("            return k", "            return (budget_ms - steps * step_ms) // sync_ms",
     "2 averagings would fit, and k counts steps"),
)


@right(ex.choose_k)
def test_slowly(steps, step_ms, sync_ms, budget_ms):
    for k in range(steps, 0, -1):
        time.sleep(0.01)
        milliseconds = averaged = 0
        for step in range(1, steps + 1):
            milliseconds += step_ms
            if step % k == 0 or step == steps:
                milliseconds, averaged = milliseconds + sync_ms, averaged + 1
        if milliseconds > budget_ms:
            break
        best = k
    try:
        return best
    except UnboundLocalError:
        raise NotEnough("no k") from None


@right(ex.choose_k)
def test_the_first_of_all(steps, step_ms, sync_ms, budget_ms):
    import math

    return min(k for k in range(1, steps + 1) if steps * step_ms + math.ceil(steps / k) * sync_ms <= budget_ms)


START = "processes = [start(rank) for rank in range(n_workers)]\n"
JOIN = "    for process in processes:\n        process.join()\n"

test_run_epoch = edits(
    ex.run_epoch,
    (START, START.replace("[", "(").replace("]", ")"), "a generator starts a worker only when it is asked for it"),
    ((("    pull_down()\n", "    for rank in range(n_workers):\n     pull_down()\n"), (f"    {START}", f"     {START}"),
      (JOIN, "     for process in processes: process.join()\n")), "3 workers: worker 0 was trained 3 times"),
    (START, "processes = [run() for run in [lambda: start(rank) for rank in range(n_workers)]]\n",
     "`start` was called with 2, 2, 2"),
    (f"    {START}{JOIN}", "    for rank in range(n_workers):\n        start(rank).join()\n", "one after the other"),
    (JOIN, "", "aggregated while worker 0 was still training"),
    (JOIN, "    processes[-1].join()\n", "aggregated while worker 0 was still training"),
    ("in processes:", "in processes[:-1]:", "aggregated while worker 2 was still training"),
    (JOIN, "    import time\n    time.sleep(1)\n", "aggregated while worker 0 was still training"),
    ("process.join()", "process.join(10)", "aggregated while worker 0 was still training"),
    ("process.join()", "process.is_alive()", "aggregated while worker 0 was still training"),
    ("process.join()", "process.kill(), process.join()", "worker 0 was ended while it trained"),
    ("    pull_down()\n", "", "calls of `pull_down()`: 0"),
    ((("    pull_down()\n", ""), (JOIN, f"    pull_down()\n{JOIN}")), "what does not, and in which order"),
    (f"    {START}", f"    {START}    pull_down()\n", "calls of `pull_down()`: 2"),
    ("        process.join()", "        process.join()\n        aggregate()", "of `aggregate()`: 4"),
    ("range(n_workers)", "range(4)", "4 workers were started"),
    ("range(n_workers)", "range(3)", "5 workers: worker 3 was trained 0 times"),
    ("range(n_workers)", "range(1, n_workers + 1)", "worker 0 was trained 0 times"),
    (f"    {START}{JOIN}", "    for first in range(0, n_workers, 2):\n        processes = [start(rank) for rank in "
     "range(first, min(first + 2, n_workers))]\n        for process in processes:\n            process.join()\n",
     "never more than 2 workers"),
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


BARRIER = "    barrier()"

test_train_epoch = edits(
    ex.train_epoch,
    (f"\n{BARRIER}", f"\n    {BARRIER}", "rank 0 had returned, rank 1 waited in vain at `barrier()`"),
    (BARRIER, "", "before rank 1 has trained"),
    (BARRIER, "    import time; time.sleep(1.2)", "A pause (`sleep`) is no waiting"),
    ((("    for", f"{BARRIER}\n    for"), (f"step(batch)\n{BARRIER}", "step(batch)")), "before rank 1 has trained"),
    ("in batches:", "in batches[:2]:", "rank 1 trained on 2 of its 3 batches"),
    ("step(batch)", "step(batch), step(batch)", "on `batch 0 of 2` 2 times"),
    ("    barrier", "    if len(batches) > 2:\n        barrier", "rank 0 had returned, rank 1 waited in vain"),
    (BARRIER, "    barrier(async_op=True)", "started an asynchronous operation and never waited for it"),
    ("    for batch", "    if not batches:\n        return\n    for batch",
     "the last rank's: rank 0 had returned, rank 1 waited in vain"),
)


@wrong(ex.train_epoch, "`barrier()` was called 2, 3 times")
def test_swallows_the_error(batches, step, barrier):
    for batch in batches:
        step(batch)
        try:
            barrier()
        except RuntimeError:
            pass


@wrong(ex.train_epoch, "A thread of your own is to be joined")
def test_threads_that_nobody_joins(batches, step, barrier):
    import threading

    for batch in batches:
        threading.Thread(target=step, args=(batch,)).start()
    barrier()


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
PARAMETERS = "for mine, its in zip(model.parameters(), global_model.parameters()): "

test_pull_down = edits(
    ex.pull_down,
    (LOAD, f"{PARAMETERS}mine.data = its.data", "worker 0 lies in the memory of the global model's `0.weight`"),
    (LOAD, f"{PARAMETERS}mine.data.copy_(its)", "`parameters()` leaves them out"),
    (LOAD, f"{PARAMETERS}mine = its", "`0.weight` of worker 0 is [11001.0, 11002.0, 11003.0, 11004.0]"),
    (LOAD, f"{PARAMETERS}mine.copy_(its)", "leaf Variable"),
    (LOAD, "model.load_state_dict(global_model.state_dict(), assign=True)", "the memory of the global model's"),
    (LOAD, "import copy; model.load_state_dict(copy.deepcopy(global_model.state_dict()), assign=True)",
     "who holds `0.weight` of worker 0 still reads"),
    (LOAD, "half = {n: t.half() for n, t in global_model.state_dict().items()}; model.load_state_dict(half)",
     "`0.weight` of worker 0 is [10000.0, "),
    (LOAD, f"model.requires_grad_(False); {LOAD}", "is frozen now"),
    (LOAD, "global_model.load_state_dict(model.state_dict())", "the global model has changed"),
    ("in local_models:", "in local_models[:1]:", "of worker 1"),
    (LOAD, "model = global_model", "`0.weight` of worker 0 is"),
    (LOAD, "import copy; local_models[:] = [copy.deepcopy(global_model) for _ in local_models]", "of worker 0"),
    (LOAD, "for mine, its in zip(model.parameters(), global_model.parameters()):\n            "
     "mine.requires_grad = False\n            mine.copy_(its)\n        "
     "for mine, its in zip(model.buffers(), global_model.buffers()):\n            mine.copy_(its)",
     "part of the graph"),
    ((("    for model", "    its = iter(global_model.state_dict().items())\n    for model"),
      ("global_model.state_dict())", "dict(its), strict=False)")), "An iterator gives each thing once"),
    (LOAD, "mine = model.state_dict()\n        for name, its in global_model.state_dict().items():\n"
     "            mine[name].copy_((mine[name] + its) / 2)", "and was [11001.0, "),
    (LOAD, "model.load_state_dict({n: (t + global_model.state_dict()[n]) / 2 for n, t in model.state_dict().items()})",
     "its values as they are, or something made of them?"),
)


@wrong(ex.pull_down, "worker 1 lies in the memory of worker 0's")
def test_shares_among_the_workers(global_model, local_models):
    import copy

    state = copy.deepcopy(global_model.state_dict())
    for model in local_models:
        model.load_state_dict(state, assign=True)


@right(ex.pull_down)
def test_tensor_by_tensor(global_model, local_models):
    import torch

    with torch.no_grad():
        for model in local_models:
            for name, tensor in model.state_dict().items():
                tensor.copy_(global_model.state_dict()[name])


@right(ex.pull_down)
def test_parameters_and_buffers(global_model, local_models):
    from itertools import chain

    for model in local_models:
        for mine, its in zip(chain(model.parameters(), model.buffers()),
                             chain(global_model.parameters(), global_model.buffers()), strict=True):
            mine.data[...] = its.data


@wrong(ex.pull_down, "every tensor, frozen or not")
def test_frozen_parameters_left_out(global_model, local_models):
    import torch

    with torch.no_grad():
        for model in local_models:
            for mine, its in zip(model.parameters(), global_model.parameters(), strict=True):
                if mine.requires_grad:
                    mine.copy_(its)
            for mine, its in zip(model.buffers(), global_model.buffers(), strict=True):
                mine.copy_(its)


@wrong(ex.train_epoch, "returned while a thread of its own was still at work")
def test_a_barrier_in_a_thread_that_nobody_joins(batches, step, barrier):
    import threading

    for batch in batches:
        step(batch)
    threading.Thread(target=barrier).start()


@right(ex.train_epoch)
def test_a_barrier_in_a_thread_that_is_joined(batches, step, barrier):
    import threading

    for batch in batches:
        step(batch)
    waiting = threading.Thread(target=barrier)
    waiting.start()
    waiting.join()


@right(ex.pull_down)
def test_frozen_while_it_copies(global_model, local_models):
    for model in local_models:
        for mine, its in zip(model.parameters(), global_model.parameters(), strict=True):
            mine.requires_grad_(False).copy_(its.detach()).requires_grad_()
        for mine, its in zip(model.buffers(), global_model.buffers(), strict=True):
            mine.copy_(its)
