"""The exercises of lesson 02: share the samples, average the models, choose when; and S4's three bugs."""

import os

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "02_parallel_sgd"


class Split(Exercise):
    title = "A shard for every worker"
    task = ("Return a list of `n_workers` ranges that share out the samples `0 … n_samples - 1`, in order and without "
            "gaps: all of the same length, but for the last, which also takes what is left over. Raise `ValueError` "
            "where `n_workers` is less than 1, or greater than `n_samples`, for then a shard would be empty.")
    hints = (
        "`n_samples // n_workers` is the length of all ranges but the last. Where does range number `rank` begin?",
        "The last range ends at `n_samples`, whatever its length. Check the two bad cases first, and `raise`.",
    )
    explanation = ("All ranges but the last end where the next one begins; the last one ends at `n_samples`. The "
                   "remainder is always smaller than the number of workers.")
    why = ("an empty shard trains nothing, and its untrained model counts in the average as much as any other. A "
           "worker with a longer shard keeps the others waiting: spreading the remainder, as in lesson 00, is fairer; "
           "S4 gives it to the last worker.")
    world_sizes = (1,)
    timeout = 10

    @staticmethod
    def stub(n_samples, n_workers):
        raise NotImplementedError

    @staticmethod
    def answer(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError(f"cannot split {n_samples} samples among {n_workers} workers")
        size = n_samples // n_workers
        starts = [rank * size for rank in range(n_workers)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], n_samples], strict=True)]

    @wrong("sample 9 is in no shard")
    def drops_the_remainder(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        size = n_samples // n_workers
        return [range(rank * size, (rank + 1) * size) for rank in range(n_workers)]

    @wrong("asked for no worker at all")
    def divides_by_zero(n_samples, n_workers):
        size = n_samples // n_workers
        return [range(rank * size, (rank + 1) * size if rank < n_workers - 1 else n_samples)
                for rank in range(n_workers)]

    @wrong("3 samples among 4 workers")
    def accepts_too_many_workers(n_samples, n_workers):
        if n_workers < 1:
            raise ValueError
        size = n_samples // n_workers
        return [range(rank * size, (rank + 1) * size if rank < n_workers - 1 else n_samples)
                for rank in range(n_workers)]

    @wrong("lengths 4, 4, 2")
    def rounds_up(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        size = -(-n_samples // n_workers)
        return [range(rank * size, min((rank + 1) * size, n_samples)) for rank in range(n_workers)]

    @wrong("lengths 3, 4, 4")
    def spreads_the_remainder(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        return [range(rank * n_samples // n_workers, (rank + 1) * n_samples // n_workers) for rank in range(n_workers)]

    @wrong("`slice(0, 3, None)`")
    def returns_slices(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        size = n_samples // n_workers
        return [slice(rank * size, (rank + 1) * size) for rank in range(n_workers)]

    @wrong("out of order")
    def deals_out_like_cards(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        return [range(rank, n_samples, n_workers) for rank in range(n_workers)]

    @wrong("sample 3 is in 2 shards")
    def ends_are_not_part_of_a_range(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError
        size = n_samples // n_workers
        return [range(rank * size, (rank + 1) * size + 1 if rank < n_workers - 1 else n_samples)
                for rank in range(n_workers)]

    @staticmethod
    def probe(split):
        observed = []
        for n_samples, n_workers in ((10, 3), (11, 3), (8, 4), (5, 1), (4, 4), (5, 0), (5, -1), (3, 4), (0, 2)):
            try:
                shards = list(split(n_samples, n_workers))[:100]
                odd = next((shard for shard in shards if not hasattr(shard, "__iter__")), None)
                if odd is not None:
                    return f"{odd!r:.60}"
                seen = [list(shard)[:100] for shard in shards]
            except (ValueError, ZeroDivisionError, IndexError) as error:
                seen = type(error).__name__
            observed.append((n_samples, n_workers, seen))
        return observed

    def judge(self, observed):
        if isinstance(observed[0], str):
            return not_yet(f"it returned a list with `{observed[0]}` in it", "a list of ranges, such as `range(0, 3)`",
                           "what you put into the list")
        for n_samples, n_workers, seen in observed[0]:
            case = f"{n_samples} samples among {n_workers} workers"
            if not 1 <= n_workers <= n_samples:
                if seen != "ValueError":
                    also = "; you were asked for no worker at all" if n_workers < 1 else ""
                    what = f"raised {seen}" if isinstance(seen, str) else f"returned {len(seen)} ranges"
                    return not_yet(f"{case}: it {what}{also}", "`ValueError`: this cannot be split",
                                   "check the arguments before you compute with them")
                continue
            if isinstance(seen, str):
                return not_yet(f"{case}: it raised {seen}", f"{n_workers} ranges", "when exactly you raise")
            lengths = ", ".join(str(len(shard)) for shard in seen)
            size = n_samples // n_workers
            wanted = [size] * (n_workers - 1) + [n_samples - size * (n_workers - 1)]
            times = {sample: sum(shard.count(sample) for shard in seen) for sample in range(n_samples)}
            for sample, count in times.items():
                if count != 1:
                    return not_yet(f"{case}: sample {sample} is in {'no shard' if not count else f'{count} shards'}",
                                   "every sample is in exactly one shard", "where each range ends, and the last one")
            if [sample for shard in seen for sample in shard] != list(range(n_samples)):
                return not_yet(f"{case}: the samples are out of order", "neighbours stay together", "your steps")
            if [len(shard) for shard in seen] != wanted:
                return not_yet(f"{case}: shards of the lengths {lengths}", ", ".join(map(str, wanted)),
                               "who takes what is left over")
        return None


# ---------------------------------------------------------------------------------------------------------------------


class Aggregate(Exercise):
    title = "The mean of models"
    task = ("`states` is a list with one `state_dict` per worker: any number of them, all with the same names and "
            "shapes. Return a new dict of tensors, the mean of all, for the global model. Integer tensors (BatchNorm "
            "counts its batches in one) keep their dtype: the fraction of their mean is cut off. The workers keep "
            "their models as they are.")
    hints = (
        "`torch.stack([state[name] for state in states])` puts one tensor of every worker into a tensor with one more "
        "dimension. Along which one do you take the mean?",
        "`mean` refuses integers. Convert to float (or double) first and back with `.to(states[0][name].dtype)`.",
    )
    explanation = ("Stacking makes a new tensor, so nothing of the workers' is changed or shared. Converting the mean "
                   "back to the dtype cuts off the fraction of integers and changes nothing for floats.")
    why = ("averaging models is the whole of federated learning's server. Adding into the first worker's tensors, or "
           "handing out the same memory twice, is how workers come to train one model without knowing it.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(states):
        raise NotImplementedError

    @staticmethod
    def answer(states):
        import torch

        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}

    @wrong("the sum")
    def forgets_to_divide(states):
        return {name: sum(state[name] for state in states) for name in states[0]}

    @wrong("3 workers")
    def divides_by_two(states):
        total = {name: sum(state[name] for state in states) for name in states[0]}
        return {name: (tensor / 2).to(tensor.dtype) for name, tensor in total.items()}

    @wrong("the models of the workers have changed")
    def adds_into_the_first(states):
        mean = states[0]
        for state in states[1:]:
            for name in mean:
                mean[name] += state[name]
        for name in mean:
            mean[name] = (mean[name] / len(states)).to(mean[name].dtype)
        return mean

    @wrong("came back as float64")
    def integers_become_floats(states):
        import torch

        return {name: torch.stack([state[name] for state in states]).double().mean(0) for name in states[0]}

    @wrong("is missing")
    def averages_floats_only(states):
        import torch

        return {name: torch.stack([state[name] for state in states]).mean(0)
                for name in states[0] if states[0][name].is_floating_point()}

    @wrong("shares its memory with worker 0")
    def returns_the_only_one(states):
        import torch

        if len(states) == 1:
            return states[0]
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}

    @wrong("whether every worker counts the same")
    def takes_the_first_ones_integers(states):
        import torch

        return {name: torch.stack([state[name] for state in states]).mean(0)
                if states[0][name].is_floating_point() else states[0][name] for name in states[0]}

    @wrong("3 workers")
    def averages_pair_by_pair(states):
        import torch

        mean = states[0]
        for state in states[1:]:
            mean = {name: ((mean[name].double() + state[name]) / 2).to(state[name].dtype) for name in state}
        return {name: torch.clone(tensor) for name, tensor in mean.items()}

    @staticmethod
    def probe(aggregate):
        import torch
        from torch import nn

        observed = []
        for workers in (2, 3, 1):
            states = []
            for worker in range(workers):
                state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
                for number, tensor in enumerate(state.values()):
                    tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 10 * number + 7 * worker ** 2)
                states.append(state)
            before = [{name: tensor.tolist() for name, tensor in state.items()} for state in states]
            mean = aggregate(states)
            after = [{name: tensor.tolist() for name, tensor in state.items()} for state in states]
            seen = {"workers": workers, "type": type(mean).__name__, "before": before, "changed": before != after,
                    "dtypes": {name: str(tensor.dtype)[6:] for name, tensor in states[0].items()}}
            if isinstance(mean, dict):
                seen["got"] = {name: (str(torch.as_tensor(value).dtype)[6:], torch.as_tensor(value).tolist())
                               for name, value in mean.items()}
                pointers = [{tensor.data_ptr() for tensor in state.values()} for state in states]
                seen["shared"] = [(name, worker) for name, value in mean.items() for worker in range(workers)
                                  if isinstance(value, torch.Tensor) and value.data_ptr() in pointers[worker]]
            observed.append(seen)
        return observed

    def judge(self, observed):
        for seen in observed[0]:
            number = seen["workers"]
            case = f"{number} worker{'s' * (number != 1)}"
            if "got" not in seen:
                return not_yet(f"{case}: it returned a {seen['type']}".replace("a NoneType", "None"),
                               "a dict of tensors by name", "the line with `return`")
            if seen["changed"]:
                return not_yet(f"{case}: the models of the workers have changed", "they stay as they are",
                               "`+=` and methods that end with `_` write into the tensor that they are given")
            for name, dtype in seen["dtypes"].items():
                values = [before[name] for before in seen["before"]]
                if name not in seen["got"]:
                    return not_yet(f"{case}: `{name}` is missing", "every name of the state dicts", "what you skip")
                got_dtype, got = seen["got"][name]
                mean, total = _elementwise(values, dtype, number), _elementwise(values, dtype, 1)
                if got_dtype != dtype:
                    return not_yet(f"{case}: `{name}` came back as {got_dtype}", dtype,
                                   "the dtype of a mean: integers have to be converted back")
                if not _close(got, mean):
                    guess = ", the sum" if _close(got, total) else ""
                    rounded = dtype.startswith("int") and _close(got, mean, 1)
                    return not_yet(f"{case}: `{name}` is {got}{guess}", f"{mean}",
                                   "how an integer mean is rounded: its fraction is cut off" if rounded else
                                   "what you divide by, and whether every worker counts the same")
            if seen["shared"]:
                name, worker = seen["shared"][0]
                return not_yet(f"{case}: `{name}` shares its memory with worker {worker}'s model",
                               "tensors of its own: who trains the one must not change the other",
                               "a tensor that you return as you got it")
        return None


def _elementwise(values, dtype, divisor):
    """The sum of nested lists, place by place, divided; integers are rounded down."""
    if isinstance(values[0], list):
        return [_elementwise(list(parts), dtype, divisor) for parts in zip(*values, strict=True)]
    return sum(values) // divisor if dtype.startswith("int") else sum(values) / divisor


def _close(got, wanted, tolerance=1e-4):
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(
            _close(*pair, tolerance) for pair in zip(got, wanted, strict=True))
    return not isinstance(got, list) and abs(got - wanted) <= tolerance


# ---------------------------------------------------------------------------------------------------------------------


class ChooseK(Exercise):
    title = "Choose k for a budget"
    task = ("Each of `steps` training steps takes `step_ms` milliseconds, and an averaging `sync_ms`. The ranks "
            "average after every `k` steps and once more at the end, unless they have just done so. Return the "
            "**smallest** `k` whose training fits into `budget_ms`. Raise `ValueError` if not even `k = steps` fits.")
    hints = (
        "With 10 steps and k = 4 the ranks average after steps 4, 8 and 10. How do you get from 10 and 4 to 3?",
        "The number of averagings is `steps / k`, rounded up: `-(-steps // k)`. Try every k from 1 on.",
    )
    explanation = ("Trying every k is simple and right; the steps alone set the limit that no k gets below, and the "
                   "rounding up makes the last, shorter round count in full.")
    why = ("the smallest k that you can pay for is the one that stays closest to averaging at every step. On a fast "
           "network that is k = 1, which is what DistributedDataParallel does; on a slow one it is not.")
    world_sizes = (1,)
    timeout = 10

    @staticmethod
    def stub(steps, step_ms, sync_ms, budget_ms):
        raise NotImplementedError

    @staticmethod
    def answer(steps, step_ms, sync_ms, budget_ms):
        for k in range(1, steps + 1):
            if steps * step_ms + -(-steps // k) * sync_ms <= budget_ms:
                return k
        raise ValueError("not even one averaging fits into the budget")

    @wrong("averages 3 times")
    def rounds_down(steps, step_ms, sync_ms, budget_ms):
        for k in range(1, steps + 1):
            if steps * step_ms + steps // k * sync_ms <= budget_ms:
                return k
        raise ValueError

    @wrong("would fit as well")
    def averages_once(steps, step_ms, sync_ms, budget_ms):
        if steps * step_ms + sync_ms > budget_ms:
            raise ValueError
        return steps

    @wrong("does not fit")
    def forgets_the_averagings(steps, step_ms, sync_ms, budget_ms):
        if steps * step_ms > budget_ms:
            raise ValueError
        return 1

    @wrong("it returned None")
    def says_nothing(steps, step_ms, sync_ms, budget_ms):
        for k in range(1, steps + 1):
            if steps * step_ms + -(-steps // k) * sync_ms <= budget_ms:
                return k

    @wrong("it returned 5.0")
    def no_whole_number(steps, step_ms, sync_ms, budget_ms):
        return steps * sync_ms / (budget_ms - steps * step_ms)

    @staticmethod
    def probe(choose_k):
        observed = []
        for case in ((10, 2, 5, 30), (10, 1, 7, 30), (100, 3, 4, 420), (7, 2, 1, 100), (20, 1, 10, 30), (12, 5, 2, 61),
                     (10, 5, 1, 40)):
            try:
                observed.append((case, choose_k(*case)))
            except (ValueError, ZeroDivisionError) as error:
                observed.append((case, type(error).__name__))
        return observed

    def judge(self, observed):
        for (steps, step, sync, budget), got in observed[0]:
            case = f"{steps} steps of {step} milliseconds, {sync} per averaging, budget {budget}"
            cost = {k: steps * step + -(-steps // k) * sync for k in range(1, steps + 1)}
            fitting = [k for k in cost if cost[k] <= budget]
            if not fitting:
                if got != "ValueError":
                    return not_yet(f"{case}: it {'raised' if isinstance(got, str) else 'returned'} {got}",
                                   "`ValueError`: no k fits", "what happens after the last k that you try")
            elif isinstance(got, bool) or not isinstance(got, int) or got not in cost:
                return not_yet(f"{case}: it {'raised' if isinstance(got, str) else 'returned'} {got}",
                               f"a whole number from 1 to {steps}", "a k counts steps")
            elif cost[got] > budget:
                return not_yet(f"{case}: k = {got} averages {-(-steps // got)} times and takes {cost[got]} "
                               "milliseconds: it does not fit", f"at most {budget}",
                               "how often the ranks average, the last time included")
            elif got != fitting[0]:
                return not_yet(f"{case}: k = {got} fits, but k = {fitting[0]} would fit as well",
                               "the smallest k that fits", "in which order you try them; whether a plan that fits "
                               "exactly counts; and how many averagings you count")
        return None


# ---------------------------------------------------------------------------------------------------------------------


class RunEpoch(Exercise):
    title = "Hunt: an epoch that is trained n times over"
    task = ("This is the loop of S4's program. Repair it, so that one epoch is one epoch: pull down once, then start "
            "every worker, so that they run side by side, wait for all of them, and aggregate. `start(rank)` starts a "
            "worker and returns its process, which has `join()`.")
    hints = (
        "Both loops call their variable `rank`. How often does the inner one run?",
        "Start all workers before you wait for the first, or they run one after the other.",
    )
    explanation = ("The outer `for rank` did nothing but repeat: with n workers, every worker was started n times. One "
                   "loop starts them, a second one waits.")
    why = ("the log showed every epoch n times and the run took n times as long, and nothing else was amiss. Count "
           "what you start: a number of passes that does not match the plan makes every comparison worthless.")
    world_sizes = (1,)
    timeout = 20

    @staticmethod
    def stub(n_workers, pull_down, start, aggregate):
        raise NotImplementedError

    @staticmethod
    def answer(n_workers, pull_down, start, aggregate):
        pull_down()
        processes = [start(rank) for rank in range(n_workers)]
        for process in processes:
            process.join()
        aggregate()

    @wrong("3 workers: worker 0 was trained 3 times")
    def as_in_the_article(n_workers, pull_down, start, aggregate):
        for rank in range(n_workers):
            pull_down()
            processes = []
            for rank in range(n_workers):
                processes.append(start(rank))
            for process in processes:
                process.join()
        aggregate()

    @wrong("one after the other")
    def keeps_the_wrong_loop(n_workers, pull_down, start, aggregate):
        pull_down()
        for rank in range(n_workers):
            start(rank).join()
        aggregate()

    @wrong("aggregated while worker 0 was still training")
    def waits_for_nobody(n_workers, pull_down, start, aggregate):
        pull_down()
        for rank in range(n_workers):
            start(rank)
        aggregate()

    @wrong("aggregated while worker 0 was still training")
    def waits_for_the_last_one(n_workers, pull_down, start, aggregate):
        pull_down()
        for rank in range(n_workers):
            process = start(rank)
        process.join()
        aggregate()

    @wrong("pulled down 0 times")
    def never_pulls_down(n_workers, pull_down, start, aggregate):
        processes = [start(rank) for rank in range(n_workers)]
        for process in processes:
            process.join()
        aggregate()

    @wrong("aggregated 3 times")
    def aggregates_for_each(n_workers, pull_down, start, aggregate):
        pull_down()
        processes = [start(rank) for rank in range(n_workers)]
        for process in processes:
            process.join()
            aggregate()

    @staticmethod
    def probe(run_epoch):
        import sys
        import time

        import torch.multiprocessing as mp

        context = mp.get_context("fork" if sys.platform == "linux" else "spawn")
        n_workers, events, processes = 3, [], []

        def start(rank):
            # Worker 0 takes longest, so that it shows who does not wait for it.
            process = context.Process(target=time.sleep, args=(0.6 if rank == 0 else 0.2,), daemon=True)
            running = sum(other.is_alive() for _, other in processes)
            process.start()
            processes.append((rank, process))
            events.append(("start", rank, running))
            return process

        def note(what):
            events.append((what, [rank for rank, process in processes if process.is_alive()], 0))

        try:
            run_epoch(n_workers, lambda: note("pull down"), start, lambda: note("aggregate"))
            return events
        finally:
            for _, process in processes:
                process.kill()
                process.join()

    def judge(self, observed):
        events, n_workers = observed[0], 3
        names = [event[0] for event in events]
        for rank in range(n_workers):
            times = sum(event[:2] == ("start", rank) for event in events)
            if times != 1:
                return not_yet(f"{n_workers} workers: worker {rank} was trained {times} times in one epoch", "once",
                               "how many loops stand around `start(rank)`, and how often each runs")
        for event in events:
            if event[0] == "aggregate" and event[1]:
                return not_yet(f"it aggregated while worker {event[1][0]} was still training",
                               "`aggregate()` after every worker has ended", "for which processes you call `join()`")
        if max(event[2] for event in events) == 0:
            return not_yet("the workers ran one after the other: none was started while another was running",
                           "they run side by side", "when you call `join()`: it waits until the process has ended")
        for what, words in (("pull down", "pulled down"), ("aggregate", "aggregated")):
            if names.count(what) != 1:
                return not_yet(f"it {words} {names.count(what)} times in one epoch", "once",
                               "what stands inside a loop, and what does not")
        if names[0] != "pull down" or names[-1] != "aggregate":
            return not_yet(f"the order was: {', '.join(names)}", "pull down, start all, aggregate",
                           "the order of calls")
        return None


# ---------------------------------------------------------------------------------------------------------------------


class TrainEpoch(Exercise):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`; the last rank has one more than the "
            "others. `step(batch)` trains on a batch, and `barrier()` waits until **all** ranks are waiting. Train on "
            "every batch, and return only when every rank has trained on all of its own.")
    hints = (
        "How often does rank 0 come to the barrier, and how often the last rank? Who is missing, and when?",
        "What has to be common is the end of the epoch, not every step.",
    )
    explanation = ("A barrier counts who arrives. Called once per batch, it is called more often where there are more "
                   "batches; called once per epoch, everybody calls it equally often.")
    why = ("a barrier, like every collective, must be called equally often by all. Remainders, uneven shards, an early "
           "`break` or an `if rank == 0` break that rule, and the symptom is never an error: it is silence.")
    world_sizes = (2, 3)
    timeout = 4

    @staticmethod
    def stub(batches, step, barrier):
        raise NotImplementedError

    @staticmethod
    def answer(batches, step, barrier):
        for batch in batches:
            step(batch)
        barrier()

    @wrong("no result after 4 s")
    def waits_after_every_batch(batches, step, barrier):
        for batch in batches:
            step(batch)
            barrier()

    @wrong("before rank 1 had trained")
    def waits_for_nobody(batches, step, barrier):
        for batch in batches:
            step(batch)

    @wrong("before rank 1 had trained")
    def waits_too_early(batches, step, barrier):
        barrier()
        for batch in batches:
            step(batch)

    @wrong("rank 1 trained on 2 of its 3 batches")
    def drops_the_last_batch(batches, step, barrier):
        for batch in batches[:2]:
            step(batch)
        barrier()

    @wrong("no result after 4 s")
    def only_the_long_ones_wait(batches, step, barrier):
        for batch in batches:
            step(batch)
        if len(batches) > 2:
            barrier()

    @staticmethod
    def probe(train_epoch):
        import time

        import torch.distributed as dist

        from helpers.launcher.rank import RUN_FOLDER

        dist.init_process_group("gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        batches, seen = [f"batch {n}" for n in range(2 + (rank == world_size - 1))], []

        def mark(what, other):
            return os.path.join(os.environ[RUN_FOLDER], f"{what}-{other}")

        def step(batch):
            time.sleep(0.15)
            seen.append(batch)
            if len(seen) == len(batches):
                open(mark("trained", rank), "w").close()

        def stay_until_all_are_back():  # who leaves takes its connections along, and a hang would become an error
            open(mark("back", rank), "w").close()
            while not all(os.path.exists(mark("back", other)) for other in range(world_size)):
                time.sleep(0.02)

        train_epoch(list(batches), step, dist.barrier)
        too_early = [other for other in range(world_size) if not os.path.exists(mark("trained", other))]
        too_early = [other for other in too_early if other != rank]
        stay_until_all_are_back()
        dist.destroy_process_group()
        return {"seen": seen, "batches": batches, "too_early": too_early}

    def _of_error(self, error, answer):
        if error.failures[0].exitcode is not None:
            return super()._of_error(error, answer)
        back = [failure.rank for failure in error.failures if "stay_until_all_are_back" in failure.message]
        where = [f"rank {failure.rank} {'has returned' if failure.rank in back else 'still waits in your function'}"
                 for failure in error.failures]
        return not_yet(f"no result after {self.timeout:g} s: {', '.join(where)}", "every rank returns",
                       "how often does each rank call `barrier()`? The last one has one batch more")

    def judge(self, observed):
        for rank, seen in enumerate(observed):
            if seen["seen"] != seen["batches"]:
                return not_yet(f"{len(observed)} ranks: rank {rank} trained on {len(seen['seen'])} of its "
                               f"{len(seen['batches'])} batches", "all of them, once each, in order",
                               "which batches the loop leaves out or repeats")
        for rank, seen in enumerate(observed):
            if seen["too_early"]:
                return not_yet(f"{len(observed)} ranks: rank {rank} returned before rank {seen['too_early'][0]} had "
                               "trained on all of its batches", "nobody returns before all are done",
                               "where the ranks wait for each other")
        return None


# ---------------------------------------------------------------------------------------------------------------------


class Progress(Exercise):
    title = "Hunt: the progress that never passes 1 %"
    task = ("Return the line that a worker prints after batch number `index`, counted from 0: samples seen, all "
            "samples, and percent of the samples, such as `64/359 (17%)`. The last batch may be smaller than "
            "`batch_size`. Percent are rounded down, so that 100% appears when all is done, and not before.")
    hints = (
        "After batch number 0, one batch has been seen, not none. How many samples at most?",
        "`min((index + 1) * batch_size, n_samples)`. And a share becomes percent by a factor that S4 forgot: `1.` for "
        "`100.` Whole percent: `100 * seen // n_samples`.",
    )
    explanation = ("Three mistakes in one line: `1.` where `100.` was meant, an index that counts from 0, and a last "
                   "batch that is smaller than the others.")
    why = ("a progress bar is the first thing that people believe. One that stands at 0 % makes them kill a run that "
           "was fine; one that counts too far hides that batches were repeated.")
    world_sizes = (1,)
    timeout = 10

    @staticmethod
    def stub(index, batch_size, n_samples):
        raise NotImplementedError

    @staticmethod
    def answer(index, batch_size, n_samples):
        seen = min((index + 1) * batch_size, n_samples)
        return f"{seen}/{n_samples} ({100 * seen // n_samples}%)"

    @wrong("never passes 1 %")
    def as_in_the_article(index, batch_size, n_samples):
        n_batches = -(-n_samples // batch_size)
        return f"{index * batch_size}/{n_samples} ({1. * index / n_batches:.0f}%)"

    @wrong("`0/359 (0%)`")
    def counts_from_zero(index, batch_size, n_samples):
        seen = index * batch_size
        return f"{seen}/{n_samples} ({100 * seen // n_samples}%)"

    @wrong("`384/359 (106%)`")
    def all_batches_are_full(index, batch_size, n_samples):
        seen = (index + 1) * batch_size
        return f"{seen}/{n_samples} ({100 * seen // n_samples}%)"

    @wrong("`64/359 (18%)`")
    def rounds_up(index, batch_size, n_samples):
        seen = min((index + 1) * batch_size, n_samples)
        return f"{seen}/{n_samples} ({100 * seen / n_samples:.0f}%)"

    @wrong("`64/359 (16%)`")
    def percent_of_the_batches(index, batch_size, n_samples):
        n_batches = -(-n_samples // batch_size)
        seen = min((index + 1) * batch_size, n_samples)
        return f"{seen}/{n_samples} ({100 * (index + 1) // n_batches}%)"

    @wrong("floats are not exact")
    def cuts_a_float(index, batch_size, n_samples):
        seen = min((index + 1) * batch_size, n_samples)
        return f"{seen}/{n_samples} ({int(seen / n_samples * 100)}%)"

    @wrong("it returned None")
    def prints_it(index, batch_size, n_samples):
        seen = min((index + 1) * batch_size, n_samples)
        print(f"{seen}/{n_samples} ({100 * seen // n_samples}%)")

    @staticmethod
    def probe(progress):
        cases = [(index, 64, 359) for index in range(6)] + [(28, 1, 100), (998, 1, 1000), (999, 1, 1000),
                                                                 (0, 64, 10)]
        return [(case, progress(*case)) for case in cases]

    def judge(self, observed):
        lines = [line for _, line in observed[0]]
        if not all(isinstance(line, str) for line in lines):
            return not_yet(f"it returned {lines[0]!r:.50}", "a line of text", "is there a `return`?")
        if all(line.endswith(("(0%)", "(1%)")) for line in lines[:6]):
            return not_yet(f"the last of six batches says `{lines[5][:50]}`: it never passes 1 %", "`359/359 (100%)`",
                           "what a share has to be multiplied by to be percent")
        for (index, batch_size, n_samples), line in observed[0]:
            wanted = self.answer(index, batch_size, n_samples)
            if line != wanted:
                return not_yet(f"batches of {batch_size}, {n_samples} samples, after batch number {index}: "
                               f"`{line[:50]}`", f"`{wanted}`", "the first batch, the last one (it is smaller), "
                               "percent of what, and the rounding: `int(0.29 * 100)` is 28, for floats are not exact")
        return None


split, aggregate, choose_k = Split(), Aggregate(), ChooseK()
run_epoch, train_epoch, progress = RunEpoch(), TrainEpoch(), Progress()
