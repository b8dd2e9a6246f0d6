"""The exercises of parallel SGD: share the samples, average the models, choose when; and three bugs."""

import contextlib
import re
import threading
import time
from collections import Counter
from functools import partial
from itertools import chain, islice

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.engine import Exercise, not_yet
from helpers.exercises.group import InGroup
from helpers.instruments.collectives import counted_traffic
from helpers.instruments.processes import Worker


def _outcome(answer, args, refuses):
    """(what it returned, ""); or (None, what it raised), if that is a ValueError, or `args` are to be refused."""
    try:
        return answer(*args), ""
    except Exception as error:
        if not refuses and not isinstance(error, ValueError):
            raise  # and the learner sees the line
        return None, f"{'ValueError' if isinstance(error, ValueError) else type(error).__name__}: {error}".rstrip(": ")


def _refusal(returned, raised, why):
    """Feedback where `ValueError` should have been raised; `returned` in words."""
    if raised.partition(":")[0] == "ValueError":
        return None
    return not_yet(f"it raised {raised}" if raised else f"it returned {returned}", f"`ValueError`: {why}",
                   "`raise ValueError(…)` before you compute with the arguments; `assert` raises another" if raised else
                   "`raise`: what is returned stops nobody")


class Split(Alone):
    title = "A shard for every worker"
    task = ("Return a list of `n_workers` ranges that share out the samples `0 … n_samples - 1`, in order and without "
            "gaps: all of the same length, but for the last, which also takes what is left over. Raise `ValueError` "
            "where `n_workers` is less than 1, or greater than `n_samples`, for then a shard would be empty.")
    hints = ("`n_samples // n_workers` is the length of all ranges but the last. Where does range number `rank` begin?",
             "The last range ends at `n_samples`, whatever its length. Check the two bad cases first, and `raise`.")
    explanation = ("All ranges but the last end where the next one begins; the last one ends at `n_samples`. The "
                   "remainder is always smaller than the number of workers.")
    why = ("an empty shard trains nothing, and its untrained model counts in the average as much as any other. Who "
           "has a longer shard keeps the others waiting: spreading the remainder is fairer; S4 gives it to the last.")
    cases = {f"{samples} samples among {workers} worker{'s' * (workers != 1)}": (samples, workers)
             for samples, workers in ((10, 3), (11, 3), (1437, 4), (8, 4), (5, 1), (4, 4),
                                      (5, 0), (5, -1), (3, 4), (0, 2), (0, 0))}

    def answer(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError(f"cannot split {n_samples} samples among {n_workers} workers")
        size = n_samples // n_workers
        starts = [rank * size for rank in range(n_workers)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], n_samples], strict=True)]

    def probe(split, case):
        n_samples, n_workers = case
        refuses = not 1 <= n_workers <= n_samples
        shards, raised = _outcome(split, case, refuses)
        ranges = isinstance(shards, list) and all(isinstance(shard, range) for shard in shards)
        returned = f"{len(shards)} ranges" if ranges else f"`{shards!r:.60}`"
        if refuses:
            return _refusal(returned, raised, "you were asked for no worker at all" if n_workers < 1 else
                            "a shard would be empty")
        if not ranges:
            return not_yet(f"it raised {raised}" if raised else f"it returned {returned}",
                           "a list of ranges, such as `[range(0, 3), range(3, 7)]`",
                           "when exactly you raise; what you return, and what you put into the list")
        size, samples = n_samples // n_workers, list(islice(chain.from_iterable(shards), 2 * n_samples))
        lengths, wanted = [len(shard) for shard in shards], [size] * (n_workers - 1) + [size + n_samples % n_workers]
        times, there = Counter(samples), Counter(range(n_samples))
        if wrong := [sample for sample in there | times if times[sample] != there[sample]]:
            count = times[wrong[0]]
            return not_yet(f"sample {wrong[0]} is in {count or 'no'} shard{'s' * (count > 1)}",
                           f"the samples 0 to {n_samples - 1} are in exactly one shard each, and no others",
                           "where each range ends, and the last one")
        if samples != list(range(n_samples)):
            return not_yet("the samples are out of order", "neighbours stay together", "your steps")
        if lengths != wanted:
            return not_yet(f"shards of the lengths {', '.join(map(str, lengths[:10]))}", ", ".join(map(str, wanted)),
                           "who takes what is left over")
        return None


class Aggregate(Alone):
    title = "The mean of models"
    task = ("`states` is a list with one `state_dict` per worker: any number of them, all with the same names and "
            "shapes. Return a new dict of tensors, the mean of all, for the global model. Every tensor keeps its "
            "dtype; of integer ones (BatchNorm counts its batches in one) the fraction of the mean is cut off. The "
            "workers keep their models as they are, and `states` its entries.")
    hints = (
        "`torch.stack([state[name] for state in states])` puts one tensor of every worker into a tensor with one more "
        "dimension. Along which one do you take the mean?",
        "`mean` refuses integers. Convert to float (or double) first and back with `.to(states[0][name].dtype)`.",
    )
    explanation = ("Stacking makes a new tensor, so nothing of the workers' is changed or shared. Converting the mean "
                   "back to the dtype cuts off the fraction of integers, and makes float32 of doubles again.")
    why = ("averaging models is the whole of federated learning's server. Adding into the first worker's tensors, or "
           "handing out the same memory twice, is how workers come to train one model without knowing it.")
    cases = {"2 workers": 2, "3 workers": 3, "1 worker": 1}

    def answer(states):
        import torch

        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}

    def probe(aggregate, workers):
        def plain(value):
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype)[6:]} of shape {tuple(value.shape)}", value.flatten().tolist()
            return "None" if value is None else f"a {type(value).__name__}"

        states = []
        for worker in range(workers):
            model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            model.register_buffer("levels", torch.zeros(3, dtype=torch.uint8))
            model.register_buffer("scale", torch.zeros(2, dtype=torch.float64))
            for number, tensor in enumerate(model.state_dict().values()):
                # Of three integers, the mean is whole; a sum of their thirds can be a little less.
                values = 90 + (0, 17, -11)[worker] + 13 * torch.arange(tensor.numel()).view(tensor.shape) + number
                tensor.copy_(values * 1.2345 - 130.7 + 37.3 * worker if tensor.is_floating_point() else values)
            states.append(model.state_dict())
        given, models = list(states), [dict(state) for state in states]  # our own; the same tensors are in them

        def entries():
            return list(map(id, states)), [list(map(id, state.values())) for state in given]

        def contents():
            return [{name: plain(tensor) for name, tensor in model.items()} for model in models]

        before, entries_before = contents(), entries()
        mean = aggregate(states)
        memory = {tensor.untyped_storage().data_ptr(): worker for worker, model in enumerate(models)
                  for tensor in model.values()}
        got = dict(mean) if isinstance(mean, dict) else {}
        return {"before": before,
                "got": {name: plain(value) for name, value in got.items()} if isinstance(mean, dict) else plain(mean),
                "changed": before != contents(), "entries": entries() == entries_before,
                "shared": [(name, memory[pointer]) for name, value in got.items() if isinstance(value, torch.Tensor)
                           and (pointer := value.untyped_storage().data_ptr()) in memory]}

    def judge(self, seen, workers):
        (one,) = seen
        before, got = one["before"], one["got"]
        if one["changed"]:
            return not_yet("the models of the workers have changed", "they stay as they are",
                           "`+=` and methods that end with `_` write into the tensor that they are given")
        if not one["entries"]:
            return not_yet("`states` has changed: entries of the list, or of a state dict in it, are gone or others",
                           "`states` keeps its entries: who called may need them again",
                           "`pop`, `del`, `clear`, and assignments to a dict that you were given")
        if isinstance(got, str):
            return not_yet(f"it returned {got}", "a dict of tensors by name", "the line with `return`")
        for name in before[0] | got:
            if name not in got or name not in before[0]:
                return not_yet(f"`{name}` is {'a name that no worker has' if name in got else 'missing'}",
                               "every name of the state dicts, and no other", "what you skip, or add")
            problem = self._problem(got[name], before[0][name][0], [state[name][1] for state in before])
            if problem:
                return not_yet(f"`{name}` {problem[0]}", *problem[1:])
        for name, worker in one["shared"]:
            return not_yet(f"`{name}` shares its memory with worker {worker}'s model",
                           "tensors of its own: who trains the one must not change the other",
                           "a tensor that you return as you got it")
        return None

    @staticmethod
    def _problem(got, kind, values):
        """What is wrong with one tensor of the mean, what was expected, where to look; None if it is right."""
        if isinstance(got, str):
            return (f"came back as {got}", "a tensor: `load_state_dict` takes nothing else",
                    "what you put into the dict: `tolist`, `item` and `numpy` return no tensors, and the tensors of a "
                    "state dict have no gradients: their `.grad` is None")
        if got[0] != kind:
            summed = got[1] == [sum(column) for column in zip(*values, strict=True)]
            return (f"came back as {got[0]}" + ", and is the sum" * summed, kind,
                    "the mean has to be converted back to the dtype; and along which dimension is it?")
        got, total = got[1], [sum(column) for column in zip(*values, strict=True)]
        mean = [value // len(values) if "int" in kind else value / len(values) for value in total]

        def close(wanted, by=1e-9 if "float64" in kind else 1e-4):
            return all(abs(a - b) <= by for a, b in zip(got, wanted, strict=True))  # False for nan as well

        if close(mean):
            return None
        own = [worker for worker, value in enumerate(values) if close(value)]
        guess, look = "", "what you divide by, and whether every worker counts the same"
        if close(total):
            guess, look = ", the sum", "what is missing between a sum and a mean?"
        elif own:
            guess = f", worker {own[0]}'s own"
            look = ("is it a mean, in which every worker counts the same? And what do you return: what you wrote into "
                    "a copy is only there")
        elif "int" in kind and all(abs(a - b) <= 1 for a, b in zip(got, mean, strict=True)):
            look = "how an integer mean is rounded: its fraction is cut off, when all are added: thirds are not exact"
        elif "float" in kind and close(mean, 2):
            guess, look = ", which has lost its digits", "the dtype in which you compute: float32 keeps seven digits"
        elif "uint8" in kind and close([value % 256 / len(values) for value in total], 1):
            look = "the dtype in which you add: `uint8` ends at 255 and begins again; convert first"
        return f"is {[round(value, 6) for value in got]}{guess}", f"{[round(value, 6) for value in mean]}", look


class ChooseK(Alone):
    title = "Choose k for a budget"
    task = ("Each of `steps` training steps takes `step_ms` milliseconds, and an averaging `sync_ms`. The ranks "
            "average after every `k` steps and once more at the end, unless they have just done so. Return the "
            "**smallest** `k` whose training fits into `budget_ms`, as an `int`. Raise `ValueError` if not even "
            "`k = steps` fits.")
    hints = ("With 10 steps and k = 4 the ranks average after steps 4, 8 and 10. How do you get from 10 and 4 to 3?",
             "The number of averagings is `steps / k`, rounded up: `-(-steps // k)`. Try every k from 1 on.")
    explanation = ("Trying every k is simple and right; the steps alone set the limit that no k gets below, and the "
                   "rounding up makes the last, shorter round count in full.")
    why = ("the smallest k that you can pay for is the one that stays closest to averaging at every step. On a fast "
           "network that is k = 1, which is what DistributedDataParallel does; on a slow one it is not.")
    cases = {"steps = {}, step_ms = {}, sync_ms = {}, budget_ms = {}".format(*case): case for case in (
        (10, 2, 5, 30), (10, 1, 7, 30), (100, 3, 4, 420), (7, 2, 1, 100), (20, 1, 10, 30), (9, 0.5, 1.75, 8),
        (1, 5, 3, 8), (12, 5, 2, 61), (10, 5, 1, 40), (10, 5, 1, 50), (1000, 1, 10, 1040))}

    def answer(steps, step_ms, sync_ms, budget_ms):
        for k in range(1, steps + 1):
            if steps * step_ms + -(-steps // k) * sync_ms <= budget_ms:
                return k
        raise ValueError("not even one averaging fits into the budget")

    def probe(choose_k, case):
        steps, step, sync, budget = case
        k, raised = _outcome(choose_k, case, refuses=steps * step + sync > budget)
        k = k if type(k) is int else f"{k!r:.60}"
        averagings = {each: -(-steps // each) for each in range(1, steps + 1)}
        cost = {each: steps * step + averagings[each] * sync for each in averagings}
        fitting = [each for each in cost if cost[each] <= budget]
        if not fitting:
            return _refusal(f"{k}", raised, "no k fits")
        if raised:
            return not_yet(f"it raised {raised}", f"k = {fitting[0]}, which takes {cost[fitting[0]]} milliseconds",
                           "which k you try, whether a plan that fits exactly counts, how many averagings you count")
        if k not in cost:
            return not_yet(f"it returned {k}", f"an `int` from 1 to {steps}", "a k counts steps; is there a `return`?")
        if cost[k] > budget:
            return not_yet(f"with k = {k}, {steps} steps take {steps * step:g} milliseconds, and "
                           f"{averagings[k]} averagings {averagings[k] * sync:g}: it does not fit",
                           f"at most {budget}",
                           "do you count both, and the last averaging? Of averagings that would fit, only whole ones "
                           "count, and a k that is computed is rounded up"
                           + ("; and are times cut to whole numbers?" if step % 1 else
                              f"; {k} averagings would fit, and k counts steps"
                              if k == (budget - steps * step) // sync else ""))
        if k != fitting[0]:
            return not_yet(f"k = {k} fits, but k = {fitting[0]} would fit as well: it averages "
                           f"{averagings[fitting[0]]} times and takes {cost[fitting[0]]:g} milliseconds",
                           "the smallest k that fits", "which k you try, in which order; whether a plan that fits "
                           "exactly counts; and how many averagings you count, where k divides the steps, too")
        return None


class RunEpoch(Exercise):
    title = "Hunt: an epoch that is trained n times over"
    task = ("The cell below holds the loop of S4's program. Repair it, so that one epoch is one epoch: pull "
            "down once, then start every worker, so that they all run side by side, wait until all have ended, and "
            "aggregate once. `start(rank)` starts a worker and returns its process, which has `join()`.")
    hints = ("Both loops call their variable `rank`. How often does the inner one run?",
             "Start all workers before you wait for the first, or they run one after the other.")
    explanation = ("The outer `for rank` did nothing but repeat: with n workers, every worker was started n times. One "
                   "loop starts them, a second one waits.")
    why = ("the log showed every epoch n times and the run took n times as long, and nothing else was amiss. Count "
           "what you start: a number of passes that does not match the plan makes every comparison worthless.")
    cases = {"3 workers": 3, "5 workers": 5, "1 worker": 1}

    def answer(n_workers, pull_down, start, aggregate):
        pull_down()
        processes = [start(rank) for rank in range(n_workers)]
        for process in processes:
            process.join()
        aggregate()

    def probe(run_epoch, n_workers):
        events, workers, all_started, threads = [], [], threading.Event(), threading.active_count()

        def note(what):
            events.append((what, [worker.rank for worker in workers if worker.trains()]))

        def start(rank):
            worker = Worker(rank)
            worker.start()
            worker.all_started, worker.threads = all_started, threads
            workers.append(worker)
            note("start")
            if len(workers) >= n_workers:
                all_started.set()
            return worker

        try:
            run_epoch(n_workers, lambda: note("pull down"), start, lambda: note("aggregate"))
            return {"events": events, "started": [worker.rank for worker in workers],
                    "ended": [worker.rank for worker in workers if not worker.trains() and worker.exitcode != 0]}
        finally:
            all_started.set()
            for worker in workers:
                worker.kill()
                worker.join()

    def judge(self, seen, n_workers):
        (one,) = seen
        events, times = one["events"], Counter(one["started"])
        names, at_once = [what for what, _ in events], max((len(training) for _, training in events), default=0)
        for rank in range(n_workers):
            if times[rank] != 1:
                return not_yet(f"worker {rank} was trained {times[rank]} times in one epoch: `start` was called with "
                               + (", ".join(map(str, one["started"])) or "nothing"), "once with each rank",
                               "how many loops stand around `start(rank)`, how often each runs; and what `rank` is "
                               "when it is called")
        if len(times) > n_workers:
            return not_yet(f"{len(times)} workers were started, {list(times)[-1]} among them",
                           f"{n_workers}, from 0 on", "who says how many there are: `n_workers`")
        if names != ["pull down", *["start"] * n_workers, "aggregate"]:
            return not_yet(f"calls of `pull_down()`: {names.count('pull down')}, of `aggregate()`: "
                           f"{names.count('aggregate')}; the order was: {', '.join(names)}",
                           "pull down once, start all, aggregate once",
                           "what stands inside a loop, what does not, and in which order")
        if events[-1][1]:
            return not_yet(f"it aggregated while worker {events[-1][1][0]} was still training",
                           "`aggregate()` after every worker has ended",
                           "for which processes you call `join()`, and whether it has returned by then; a pause, or a "
                           "`join` with a limit, is only a guess")
        for rank in one["ended"]:
            return not_yet(f"worker {rank} was ended while it trained", "it ends by itself: wait for it",
                           "`terminate` and `kill`")
        if at_once < n_workers:
            words = ("the workers ran one after the other: none was started while another was running" if at_once == 1
                     else f"there were never more than {at_once} workers running side by side")
            return not_yet(words, f"all {n_workers} run side by side",
                           "when you call `join()`: it waits until the process has ended; and a generator starts a "
                           "worker only when it is asked for it")
        return None


class TrainEpoch(InGroup):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`; the last rank has one more than the "
            "others. `step(batch)` trains on a batch, and `barrier()` waits until **all** ranks are waiting. Train on "
            "every batch once, and return only when every rank has trained on all of its own, however long it takes.")
    hints = ("How often does rank 0 come to the barrier, and how often the last rank? Who is missing, and when?",
             "What has to be common is the end of the epoch, not every step.")
    explanation = ("A barrier counts who arrives. Called once per batch, it is called more often where there are more "
                   "batches; called once per epoch, everybody calls it equally often.")
    why = ("a barrier, like every collective, must be called equally often by all. Remainders, uneven shards, an early "
           "`break` or an `if rank == 0` break that rule, and the symptom is never an error: it is silence.")
    world_sizes = (2, 3)
    waiting = "how often does each rank call `barrier()`? The last one has one batch more"
    cases = {"": 2, "other batches": 5, "a single batch, the last rank's": 0}

    def answer(batches, step, barrier):
        for batch in batches:
            step(batch)
        barrier()

    def probe(train_epoch, at_least):
        rank, trained, calls, one_by_one = dist.get_rank(), [], [], threading.Lock()
        batches = [f"batch {number} of {at_least}" for number in range(at_least + (rank == dist.get_world_size() - 1))]
        with counted_traffic() as whole, contextlib.ExitStack() as since_the_last_step:
            last = since_the_last_step.enter_context(counted_traffic())

            def step(batch):
                nonlocal last
                with one_by_one:
                    trained.append(str(batch))
                    since_the_last_step.close()
                    last = since_the_last_step.enter_context(counted_traffic())

            def called(function, *args, **kwargs):
                calls.append(done := threading.Event())
                try:
                    if threading.current_thread() is not threading.main_thread():
                        time.sleep(0.3)  # who does not wait for its threads goes on before they are done
                    return function(*args, **kwargs)
                finally:
                    done.set()

            train_epoch(list(batches), partial(called, step), partial(called, dist.barrier))
            left = not all(done.is_set() for done in calls)
            for done in calls:
                done.wait(2)
        return {"trained": trained, "batches": batches, "collectives": len(whole.collectives), "left": left,
                "met": bool(re.search(r"\b(barrier|all|reduce_scatter)|\b(reduce|gather)\b.*\b(broadcast|scatter)\b",
                                      " ".join(one.name for one in last.collectives))),
                "unwaited": last.unwaited}

    def judge(self, seen, at_least):
        for rank, one in enumerate(seen):
            times = Counter(one["trained"])
            if wrong := [batch for batch in times | Counter(one["batches"])
                         if times[batch] != (batch in one["batches"])]:
                done = sum(times[batch] > 0 for batch in one["batches"])
                return not_yet(f"rank {rank} trained on {done} of its {len(one['batches'])} batches: on `{wrong[0]}` "
                               f"{times[wrong[0]]} times", "on each of them once",
                               "which batches the loop leaves out or repeats")
        counts = [one["collectives"] for one in seen]
        if len(set(counts)) > 1:
            return not_yet(f"by rank, `barrier()` was called {', '.join(map(str, counts))} times", "equally often",
                           "an error of `barrier()` that is caught is a rank that waited in vain")
        for rank, one in reversed(list(enumerate(seen))):
            if not one["met"] or one["unwaited"] or one["left"]:
                did = ("returned while a thread of its own was still at work" if one["left"] else
                       "did not wait for its asynchronous barrier" if one["met"] else "waited for nobody")
                return not_yet(f"after its last batch, rank {rank} {did}: another may return before rank {rank} has "
                               "trained on all of its batches", "nobody returns before all are done",
                               "where the ranks wait for each other. A pause (`sleep`) is no waiting: nobody knows how "
                               "long the others take. A thread of your own is to be joined before")
        return None


class PullDown(Alone):
    title = "Hunt: the copy that copies nothing"
    task = ("The cell below holds S4's `pull_down`. Repair it: afterwards every local model has the global "
            "model's values, in all parameters and buffers (BatchNorm keeps its statistics in buffers), and shares no "
            "memory with it. The workers hold the tensors of their local models already, so the values must arrive in "
            "those tensors. The global model stays as it is.")
    hints = (
        "`a.data = b.data` makes `a` a second name for b's memory. Which method writes values into memory that is "
        "there?",
        "`mine.copy_(its)` under `torch.no_grad()` for every parameter and every buffer; or one method of a module "
        "does it all with the other's `state_dict()`.",
    )
    explanation = ("`load_state_dict` copies every value, buffers included, into the tensors that are there. Nothing "
                   "is shared, and who holds a tensor sees what arrives in it.")
    why = ("a copy and a second name look alike until somebody writes. What tells them apart is `data_ptr()`, or one "
           "step of training: whose weights have moved?")
    cases = {"3 workers": 3, "1 worker": 1}

    def answer(global_model, local_models):
        for model in local_models:
            model.load_state_dict(global_model.state_dict())

    def probe(pull_down, workers):
        models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(workers + 1)]
        for number, model in enumerate(models):
            for place, tensor in enumerate(model.state_dict().values()):
                tensor.copy_(10_001 + 1000 * number + 10 * place + torch.arange(tensor.numel()).view(tensor.shape))
            model[0].bias.requires_grad = False  # frozen, as in a fine-tuning
        held = [model.state_dict() for model in models]  # by a worker's optimizer, say: the tensors themselves

        def values(states):
            return [{name: tensor.flatten().tolist() for name, tensor in state.items()} for state in states]

        before = values(held)
        pull_down(models[0], models[1:])
        now = [model.state_dict() for model in models]
        memory = {tensor.untyped_storage().data_ptr(): (number, name)  # whose it is: the first model's that has it
                  for number, state in reversed(list(enumerate(now))) for name, tensor in state.items()}
        shared = [(number, name, *owner) for number, state in enumerate(now) for name, tensor in state.items()
                  if (owner := memory[tensor.untyped_storage().data_ptr()])[0] != number]
        wanted, copying = before[0], "`=` on `.data` gives a tensor another's memory; `copy_` copies the values"
        for number, name, owner, its in shared:
            whose = f"worker {owner - 1}'s" if owner else "the global model's"
            return not_yet(f"`{name}` of worker {number - 1} lies in the memory of {whose} `{its}`",
                           "memory of its own: who trains the one must not change the other", copying)
        now, held = values(now), values(held)
        if now[0] != wanted or held[0] != wanted:
            return not_yet("the global model has changed", "it stays as it is", "which side you write to")
        parameters = [item for model in models for item in model.named_parameters()]
        for name, one in parameters:
            if not one.is_leaf or (not one.requires_grad and name != "0.bias"):
                became = "is frozen now" if one.is_leaf else "is part of the graph now: its gradients go elsewhere"
                return not_yet(f"`{name}` {became}", "models that can be trained", "`torch.no_grad()`: what is copied "
                               "under it, or from `.data`, has no history, and needs no `requires_grad = False`")
        for worker, (mine, kept) in enumerate(zip(now[1:], held[1:], strict=True)):
            for name, its in wanted.items():
                if mine[name] != its:
                    return not_yet(f"`{name}` of worker {worker} is {mine[name]}"
                                   + (", as it was" if mine[name] == before[worker + 1][name] else
                                      f", and was {before[worker + 1][name]}"),
                                   f"{its}, as in the global model",
                                   "what is written there: its values as they are, or something made of them?"
                                   if mine[name] != before[worker + 1][name] else
                                   "buffers: `parameters()` leaves them out; some are integers"
                                   if name in dict(models[0].named_buffers()) else
                                   "worker 0 has its values: how often does the loop run, and what is used up then? An "
                                   "iterator gives each thing once" if worker else
                                   "whether every tensor, frozen or not, of every local model gets its values: `mine = "
                                   "…` only names another tensor; `strict=False` is silent about names that do not "
                                   "fit; and another model, put into the list, is not the worker's")
                if kept[name] != its:
                    return not_yet(f"who holds `{name}` of worker {worker} still reads {kept[name]}: the model has "
                                   "another tensor now", f"{its}, in the tensor that was there", copying)
        return None


split, aggregate, choose_k = Split(), Aggregate(), ChooseK()
run_epoch, train_epoch, pull_down = RunEpoch(), TrainEpoch(), PullDown()
