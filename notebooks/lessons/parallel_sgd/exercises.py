"""The exercises of parallel SGD: share the samples, average the models; and three bugs."""

import re
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, each, nothing, same
from helpers.instruments.collectives import recorded
from lessons.parallel_sgd.workers import Worker

RAISE = "`raise ValueError(…)` before you compute; `assert` raises another, and what is returned stops nobody"
LENGTHS = "all ranges are `n_samples // n_workers` long, but for the last one, which takes what is left over"
CHECKED, NEXT_ONE = "if not 1 <= n_workers <= n_samples:", "[*starts[1:], n_samples]"
RANGES = f"range(a, b) for a, b in zip(starts, {NEXT_ONE}, strict=True)"


def not_refused(mine, wanted, case):
    if mine["raised"] == wanted["raised"]:
        return None
    did = f"raised {mine['raised']}" if mine["raised"] else f"returned {mine['shards']}"
    return f"it {did}", "`ValueError`: there is no worker, or not a sample for each"


class Split(Table, Alone):
    title = "A shard for every worker"
    task = ("Return a list of `n_workers` ranges that share out the samples `0 … n_samples - 1`, in order "
            "and without gaps: all of the same length, but for the last, which also takes what is left over. "
            "Raise `ValueError` where `n_workers` is less than 1, or greater than `n_samples`, for then a "
            "shard would be empty.")
    hints = (
        "`n_samples // n_workers` is the length of all ranges but the last. Where does range `rank` begin?",
        "The last range ends at `n_samples`, whatever its length. Check the bad cases first, and `raise`.",
    )
    explanation = ("All ranges but the last end where the next one begins; the last one ends at `n_samples`. "
                   "The remainder is always smaller than the number of workers.")
    why = ("an empty shard trains nothing, and its untrained model counts in the average as much as any "
           "other. Who has a longer shard keeps the others waiting: spreading the remainder is fairer; S4 "
           "gives it to the last.")
    cases = {f"{samples} samples among {workers} worker{'s' if workers != 1 else ''}": (samples, workers)
             for samples, workers in ((10, 3), (11, 3), (1437, 4), (8, 4), (5, 1), (4, 4),
                                      (5, 0), (5, -1), (3, 4), (0, 2), (0, 0))}

    def answer(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError(f"cannot split {n_samples} samples among {n_workers} workers")
        size = n_samples // n_workers
        starts = [rank * size for rank in range(n_workers)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], n_samples], strict=True)]

    def observe(split, case):
        n_samples, n_workers = case
        try:
            shards = split(n_samples, n_workers)
        except Exception as error:
            if 1 <= n_workers <= n_samples:
                raise  # so that the learner sees the line
            return {"raised": "ValueError" if isinstance(error, ValueError) else repr(error), "shards": None}
        ranges = isinstance(shards, list) and all(isinstance(shard, range) for shard in shards)
        return {"raised": None, "shards": shards if ranges else f"{shards!r:.60}"}

    rules = (
        each(not_refused, RAISE),
        same("shards", "where each range begins and ends, and the last one; return a list of ranges"),
    )
    mistakes = (
        (NEXT_ONE, "[start + size for start in starts]", "who takes what is left over? The last range does"),
        ("n_samples]", "n_samples + 1]", "a range ends just before its second number"),
        (CHECKED, "if n_workers < 1:", "ask for more workers than samples, too: then a shard would be empty"),
        (CHECKED, "if n_workers > n_samples:", "ask for fewer than one worker, too, before you divide"),
        ("raise ValueError(", "raise IndexError(", RAISE),
        (RANGES, "range(a, min(a + 1 + size, n_samples)) for a in range(0, n_samples, 1 + size)",
         f"round down, not up: {LENGTHS}"),
        (RANGES, "range(r * n_samples // n_workers, (r + 1) * n_samples // n_workers) "
                 "for r in range(n_workers)",
         f"you spread what is left over, which is fairer; but here {LENGTHS}"),
        (RANGES, "range(r, n_samples, n_workers) for r in range(n_workers)", "neighbours stay together"),
    )


MEAN = "tensor.double().mean(0).to(tensor.dtype)"
WRITES = "`+=` and methods that end with `_` write into the tensor that they are given"


def state_of(worker):
    """A model's `state_dict`: adding in float32 loses the digits of `scale`, adding in uint8 overflows."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("levels", torch.zeros(3, dtype=torch.uint8))
    model.register_buffer("scale", torch.zeros(2, dtype=torch.float64))
    for number, tensor in enumerate(model.state_dict().values()):
        # The mean of three of these integers is whole; a sum of their thirds can be a little less.
        whole = 90 + (0, 17, -11)[worker] + 13 * torch.arange(tensor.numel()).view(tensor.shape) + number
        tensor.copy_(whole * 1.2345 + 37.3 * worker if tensor.is_floating_point() else whole)
    model.scale += (1e9, -1e9, 0)[worker]
    return model.state_dict()


class Aggregate(Table, Alone):
    title = "The mean of models"
    task = ("`states` is a list with one `state_dict` per worker: any number of them, all with the same "
            "names and shapes. Return a new dict of tensors, the mean of all, for the global model. Every "
            "tensor keeps its dtype; of integer ones (BatchNorm counts its batches in one) the fraction of "
            "the mean is cut off. The workers keep their models as they are, and `states` its entries.")
    hints = (
        "`torch.stack([state[name] for state in states])` puts one tensor of every worker into a tensor with "
        "one more dimension. Along which one do you take the mean?",
        "`mean` refuses integers. Convert to float (or double) first and back with "
        "`.to(states[0][name].dtype)`.",
    )
    explanation = ("Stacking makes a new tensor, so nothing of the workers' is changed or shared. Converting "
                   "the mean back to the dtype cuts off the fraction of integers, and makes float32 of "
                   "doubles again.")
    why = ("averaging models is the whole of federated learning's server. Adding into the first worker's "
           "tensors, or handing out the same memory twice, is how workers come to train one model without "
           "knowing it.")
    cases = {"2 workers": 2, "3 workers": 3, "1 worker": 1}

    def answer(states):
        import torch

        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        return {name: tensor.double().mean(0).to(tensor.dtype) for name, tensor in stacked.items()}

    def observe(aggregate, n_workers):
        states = [state_of(worker) for worker in range(n_workers)]
        models = [dict(state) for state in states]  # the same tensors, also if `states` loses its entries
        before = [{name: tensor.clone() for name, tensor in model.items()} for model in models]
        entries = {id(tensor) for state in states for tensor in state.values()}
        mean = aggregate(states)
        got = dict(mean) if isinstance(mean, dict) else {}
        tensors = {name: got[name] for name in sorted(got) if isinstance(got[name], torch.Tensor)}
        memory = {tensor.untyped_storage().data_ptr() for model in models for tensor in model.values()}
        return {
            "changed": [f"`{name}` of worker {worker}" for worker, model in enumerate(models)
                        for name, tensor in model.items() if not torch.equal(tensor, before[worker][name])],
            "entries": len(entries ^ {id(tensor) for state in states for tensor in state.values()}),
            "type": "dict" if isinstance(mean, dict) else type(mean).__name__,
            "missing": [name for name in sorted({*models[0], *got}) if name not in tensors],
            "kind": {name: f"{one.dtype} of shape {list(one.shape)}" for name, one in tensors.items()},
            "mean": {name: one.flatten().tolist() for name, one in tensors.items()},
            "in a worker's memory": [name for name, one in tensors.items()
                                     if one.untyped_storage().data_ptr() in memory]}

    rules = (
        nothing("changed", WRITES, "the models of the workers stay as they are"),
        nothing("entries", "`pop`, `del`, `clear`, and assignments to a dict that you were given",
                "none of those in `states` is gone, or another one"),
        same("type", "the line with `return`"),
        nothing("missing", "what you skip; lists and arrays are no tensors, and `.grad` is None there",
                "a tensor for every name of the state dicts, and for no other"),
        same("kind", "convert the mean back to the dtype; and along which dimension is it?"),
        same("mean", "by what you divide, and when (add first, in double); does every worker count the same?",
             within=1e-5),
        nothing("in a worker's memory", "a tensor that you return as you got it: both would be trained",
                "tensors of its own"),
    )
    mistakes = (
        (".mean(0)", ".sum(0)", "what is missing between a sum and a mean?"),
        (".mean(0)", ".sum(0).div(2)", "there need not be two workers: by what do you divide?"),
        (MEAN, MEAN.replace(".to", ".round().to"), "its fraction is cut off, and not rounded"),
        (MEAN, "sum(one / len(states) for one in tensor).to(tensor.dtype)",
         "add first, then divide: thirds are not exact, and an integer then misses one"),
        (".double()", ".float()", "the dtype in which you compute: float32 keeps seven digits"),
        (MEAN, "(sum(tensor) / len(states)).to(tensor.dtype)",
         "the dtype in which you add: `uint8` ends at 255 and begins again; convert first"),
        ("stacked.items()", "stacked.items() if tensor.is_floating_point()",
         "integer tensors are averaged like the others: BatchNorm counts its batches in one"),
        (MEAN, "tensor[0].clone()", "that is worker 0's own: what you write into a copy is only there"),
        (MEAN, "states[0][name].copy_(tensor.double().mean(0))", WRITES),
    )


START = "    processes = [start(rank) for rank in range(n_workers)]\n"
JOIN = "    for process in processes:\n        process.join()\n"
WAIT = "for which processes you call `join()`; a pause, or a `join` with a limit, is only a guess"


class RunEpoch(Table):
    title = "Hunt: an epoch that is trained n times over"
    task = ("The cell below holds the loop of S4's program. Repair it, so that one epoch is one epoch: pull "
            "down once, then start every worker, so that they all run side by side, wait until all have "
            "ended, and aggregate once. `start(rank)` starts a worker and returns its process, which has "
            "`join()`.")
    hints = ("Both loops call their variable `rank`. How often does the inner one run?",
             "Start all workers before you wait for the first, or they run one after the other.")
    explanation = ("The outer `for rank` did nothing but repeat: with n workers, every worker was started n "
                   "times. One loop starts them, a second one waits.")
    why = ("the log showed every epoch n times and the run took n times as long, and nothing else was amiss. "
           "Count what you start: a number of passes that does not match the plan makes every comparison "
           "worthless.")
    cases = {"3 workers": 3, "5 workers": 5, "1 worker": 1}

    def answer(n_workers, pull_down, start, aggregate):
        pull_down()
        processes = [start(rank) for rank in range(n_workers)]
        for process in processes:
            process.join()
        aggregate()

    def observe(run_epoch, n_workers):
        calls, training, workers = [], [], []
        all_started, threads = threading.Event(), threading.active_count()

        def note(what):
            calls.append(what)
            training.append([worker.rank for worker in workers if worker.trains])

        def until_all_are_started():
            if threading.active_count() > threads:
                all_started.wait(5)
                all_started.set()  # if nobody has come, the other workers need not wait for it again

        def start(rank):
            workers.append(Worker(rank, until_all_are_started))
            note("start")
            if len(workers) >= n_workers:
                all_started.set()
            return workers[-1]

        run_epoch(n_workers, lambda: note("pull down"), start, lambda: note("aggregate"))
        return {
            "ranks started": ", ".join(sorted(str(worker.rank) for worker in workers)),
            "calls": ", ".join(calls),
            "still training": training[-1] if training else [],
            "ended by force": [worker.rank for worker in workers if worker.killed],
            "workers side by side": max(map(len, training), default=0)}

    rules = (
        same("ranks started",
             "how often each loop around `start(rank)` runs; what `rank` is then: a `lambda` reads it late"),
        same("calls", "what stands inside a loop, what does not, and in which order"),
        nothing("still training", WAIT, "`aggregate()` comes after every worker has ended"),
        nothing("ended by force", "`terminate` and `kill`: a worker ends by itself", "none: wait for it"),
        same("workers side by side", "when you call `join()`: it waits until the process has ended"),
    )
    mistakes = (
        ((("    pull_down()\n", "    for rank in range(n_workers):\n     pull_down()\n"),
          (START, f" {START}"), (JOIN, "     for process in processes: process.join()\n")),
         "how many loops stand around `start(rank)`? One is enough"),
        (START + JOIN, "    for rank in range(n_workers):\n        start(rank).join()\n",
         "`join()` waits until the process has ended: start all workers before you wait for the first"),
        (START, START.replace("[", "(").replace("]", ")"),
         "a generator starts a worker only when the loop asks for it, which then waits for it: use a list"),
        (JOIN, "", WAIT),
        (JOIN, "    processes[-1].join()\n", "wait for every worker: the last one to start may end first"),
        ("process.join()", "process.kill(), process.join()", "`kill` ends a worker that still trains"),
        ("process.join()", "process.join(), aggregate()", "`aggregate()` is inside a loop"),
        ("range(n_workers)", "range(1, n_workers + 1)", "ranks are counted from 0"),
        ("range(n_workers)", "range(4)", "how many workers there are, `n_workers` says"),
    )


#: Collectives that return in no rank before all ranks have come.
MEETS = re.compile(r"\b(barrier|all|reduce_scatter)|\b(reduce|gather)\b.*\b(broadcast|scatter)\b")
PAUSE = "where the ranks wait for each other; a pause (`sleep`) is only a guess"


def waits_for_nobody(mine, wanted, case):
    if not mine["waits for all"]:
        return "after its last batch it waits for nobody", "no rank returns before all are done"


class TrainEpoch(Table, InGroup):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`; the last rank has one more than "
            "the others. `step(batch)` trains on a batch, and `barrier()` waits until **all** ranks are "
            "waiting. Train on every batch once, and return only when every rank has trained on all of its "
            "own, however long it takes.")
    hints = ("How often does rank 0 come to the barrier, how often the last rank? Who is missing, and when?",
             "What has to be common is the end of the epoch, not every step.")
    explanation = ("A barrier counts who arrives. Called once per batch, it is called more often where there "
                   "are more batches; called once per epoch, everybody calls it equally often.")
    why = ("a barrier, like every collective, must be called equally often by all. Remainders, uneven "
           "shards, an early `break` or an `if rank == 0` break that rule, and the symptom is never an "
           "error: it is silence.")
    world_sizes = (2, 3)
    waiting = "how often does each rank call `barrier()`? The last one has one batch more"
    cases = {"": 2, "other batches": 5, "a single batch, the last rank's": 0}

    def answer(batches, step, barrier):
        for batch in batches:
            step(batch)
        barrier()

    def observe(train_epoch, at_least):
        is_last = dist.get_rank() == dist.get_world_size() - 1
        batches = [f"batch {number} of {at_least}" for number in range(at_least + is_last)]
        trained, calls, before = [], [], len(recorded())
        before_last_step = before

        def called(function, *args, **kwargs):
            calls.append(done := threading.Event())
            try:
                if threading.current_thread() is not threading.main_thread():
                    time.sleep(0.3)  # who does not wait for the threads returns before they are done
                return function(*args, **kwargs)
            finally:
                done.set()

        def train(batch):
            nonlocal before_last_step
            trained.append(str(batch))
            before_last_step = len(recorded())

        train_epoch(list(batches), lambda batch: called(train, batch),
                    lambda *args, **kwargs: called(dist.barrier, *args, **kwargs))
        left = sum(not done.is_set() for done in calls)
        for done in calls:
            done.wait(2)  # so that a barrier under way meets no other one
        since = TrainEpoch.traffic.collectives[before_last_step - before:]
        return {
            "times trained": {batch: trained.count(batch) for batch in sorted({*batches, *trained})},
            "calls under way in threads": left,
            "waits for all": bool(MEETS.search(" ".join(one.name for one in since)))}

    rules = (
        same("times trained", "which batches the loop leaves out or repeats"),
        nothing("calls under way in threads", "a thread of your own is to be joined before you return",
                "all of them have ended when the function returns"),
        each(waits_for_nobody, PAUSE),
    )
    mistakes = (
        ("    barrier()", "", PAUSE),
        ((("    for", "    barrier()\n    for"), ("step(batch)\n    barrier()", "step(batch)")),
         "the barrier comes after the last batch, not before the first"),
        ("in batches:", "in batches[:2]:", "which batches does the loop leave out?"),
        ("step(batch)", "step(batch), step(batch)", "the loop repeats a batch"),
    )
    stops = (
        ("\n    barrier()", "\n        barrier()", "waited in vain at `barrier()`", waiting),
        ("    barrier()", "    barrier(async_op=True)", "never waited for it",
         "with `async_op=True`, `barrier` returns at once, with something that has a `.wait()`"),
        ("        step(batch)\n    barrier()", "        step(batch)\n        try:\n            barrier()\n"
         "        except RuntimeError:\n            pass", "caught the error",
         f"an error of `barrier()` that is caught is a rank that waited in vain: {waiting}"),
    )


LOAD = "model.load_state_dict(global_model.state_dict())"
PARAMETERS = "for mine, its in zip(model.parameters(), global_model.parameters()): "
COPYING = "`=` on `.data` gives a tensor another's memory; `copy_` copies the values"
ANOTHER = "`mine = …` names another tensor, `model = …` another model; `strict=False` skips names in silence"


class PullDown(Table, Alone):
    title = "Hunt: the copy that copies nothing"
    task = ("The cell below holds S4's `pull_down`. Repair it: afterwards every local model has the global "
            "model's values, in all parameters and buffers (BatchNorm keeps its statistics in buffers), and "
            "shares no memory with it. The workers hold the tensors of their local models already, so the "
            "values must arrive in those tensors. The global model stays as it is.")
    hints = (
        "`a.data = b.data` makes `a` a second name for b's memory. Which method writes values into memory "
        "that is there?",
        "`mine.copy_(its)` under `torch.no_grad()` for every parameter and every buffer; or one method of a "
        "module does it all with the other's `state_dict()`.",
    )
    explanation = ("`load_state_dict` copies every value, buffers included, into the tensors that are there. "
                   "Nothing is shared, and who holds a tensor sees what arrives in it.")
    why = ("a copy and a second name look alike until somebody writes. What tells them apart is "
           "`data_ptr()`, or one step of training: whose weights have moved?")
    cases = {"3 workers": 3, "1 worker": 1}

    def answer(global_model, local_models):
        for model in local_models:
            model.load_state_dict(global_model.state_dict())

    def observe(pull_down, n_workers):
        models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(n_workers + 1)]
        for number, model in enumerate(models):  # the global model 10,001 …, worker 0's 11,001 …
            for place, tensor in enumerate(model.state_dict().values()):
                values = torch.arange(tensor.numel()).view(tensor.shape)
                tensor.copy_(10_001 + 1000 * number + 10 * place + values)
            model[0].bias.requires_grad = False  # frozen, as in a fine-tuning
        held = [model.state_dict() for model in models]  # by an optimizer, say: the tensors themselves
        pull_down(models[0], models[1:])

        def values(states):
            return [{name: tensor.flatten().tolist() for name, tensor in state.items()} for state in states]

        now = [model.state_dict() for model in models]
        owners, shared = {}, ""
        names = ["the global model", *(f"worker {number}" for number in range(n_workers))]
        for who, state in zip(names, now, strict=True):
            for name, tensor in state.items():
                owner = owners.setdefault(tensor.untyped_storage().data_ptr(), who)
                if owner != who and not shared:
                    shared = f"`{name}` of {who} is in the memory of {owner}"
        global_model, *local_models = values(now)
        parameters = [item for model in models for item in model.named_parameters()]
        return {
            "shared memory": shared,
            "the global model": global_model,
            "part of the graph": [name for name, one in parameters if not one.is_leaf],
            "frozen": [name for name, one in parameters if not one.requires_grad and name != "0.bias"],
            "local_models": local_models,
            "held by the workers": values(held[1:])}

    rules = (
        nothing("shared memory", COPYING, "memory of its own: who trains the one must not change the other"),
        same("the global model", "which side you write to: the global model stays as it is"),
        nothing("part of the graph", "`torch.no_grad()`: what is copied under it has no history"),
        nothing("frozen", "copying needs no `requires_grad = False`: `torch.no_grad()` is enough"),
        same("local_models", f"do all tensors of all local models get its values, as they are? {ANOTHER}"),
        same("held by the workers", f"the model has other tensors now: {COPYING}"),
    )
    mistakes = (
        (LOAD, f"{PARAMETERS}mine.data = its.data", COPYING),
        (LOAD, f"{PARAMETERS}mine.data.copy_(its)", "`parameters()` leaves out the buffers: copy them, too"),
        (LOAD, f"{PARAMETERS}mine = its", ANOTHER),
        (LOAD, LOAD.replace("())", "(), assign=True)"), "`assign=True` gives the model the other's tensors"),
        (LOAD, "import copy; model.load_state_dict(copy.deepcopy(global_model.state_dict()), assign=True)",
         "the model has other tensors now; a worker that holds the old ones sees nothing of it"),
        (LOAD, f"model.requires_grad_(False); {LOAD}", "`model` is frozen now: copying needs none of that"),
        (LOAD, "global_model.load_state_dict(model.state_dict())", "you write to the wrong side"),
        ("in local_models:", "in local_models[:1]:", "worker 0 has its values, the next one not: how often "
         "does the loop run, and what is used up then? An iterator gives each thing once"),
    )
    stops = ((LOAD, f"{PARAMETERS}mine.copy_(its)", "leaf Variable", "put it under `with torch.no_grad():`"),)


split, aggregate, run_epoch, train_epoch, pull_down = (
    Split(), Aggregate(), RunEpoch(), TrainEpoch(), PullDown())
