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

RAISE = "`raise ValueError(…)` before you compute. `assert` raises another error"
CHECKED = "if not 1 <= n_workers <= n_samples:"
CUT = "starts = [rank * n_samples // n_workers for rank in range(n_workers)]"
SIZE = "size = n_samples // n_workers\n    starts = [rank * size for rank in range(n_workers)]"
UP = CUT.replace("rank * n_samples // n_workers", "min(rank * -(-n_samples // n_workers), n_samples)")
NEXT_ONE = "[*starts[1:], n_samples]"
EXPECTED = "ranges in order, without gaps, from 0 to the last sample, whose lengths differ by one at most"


def not_refused(mine, wanted, case):
    if mine["raised"] == wanted["raised"]:
        return None
    did = f"raised {mine['raised']}" if mine["raised"] else f"returned {mine['shards']}"
    return f"it {did}", "`ValueError`: there is no worker, or not a sample for each"


def when_there_are_shards(broken):
    return lambda mine, wanted, case: None if mine["shards"] is None else broken(mine, wanted, case)


def not_all_once(mine, wanted, case):
    shards, (n_samples, n_workers) = mine["shards"], case
    if isinstance(shards, str) or len(shards) != n_workers:
        return f"it returned {shards}", f"a list of {n_workers} ranges"
    if [sample for shard in shards for sample in shard] != list(range(n_samples)):
        return f"it returned {shards}, which is not every sample once, in order", EXPECTED


def uneven(mine, wanted, case):
    sizes = [len(shard) for shard in mine["shards"]]
    if max(sizes) - min(sizes) > 1:
        return f"the ranges are {', '.join(map(str, sizes))} long", EXPECTED


class Split(Table, Alone):
    title = "A shard for every worker"
    task = ("Share out the samples `0 … n_samples - 1`: return a list of `n_workers` ranges, in order and "
            "without gaps. Their lengths differ by one at most. Raise `ValueError` if `n_workers` is less "
            "than 1, or greater than `n_samples`, because a shard would then be empty.")
    hints = ("Where does the range of worker `rank` begin? Each range ends where the next one begins.",
             "`rank * n_samples // n_workers` spreads the remainder over the workers. Check the bad cases "
             "first, and `raise`.")
    explanation = ("`rank * n_samples // n_workers` is where a worker's fair share begins, rounded down. "
                   "Each range ends where the next one begins, so no sample is lost.")
    why = ("an empty shard trains nothing, and its untrained model counts in the average as much as any "
           "other. A worker with a longer shard makes the others wait. The article gives the whole "
           "remainder to the last worker; your ranges are fairer.")
    cases = {f"{samples} samples among {workers} worker{'s' if workers != 1 else ''}": (samples, workers)
             for samples, workers in ((10, 3), (11, 3), (1437, 4), (8, 4), (5, 1), (4, 4),
                                      (5, 0), (5, -1), (3, 4), (0, 2), (0, 0))}

    def answer(n_samples, n_workers):
        if not 1 <= n_workers <= n_samples:
            raise ValueError(f"cannot split {n_samples} samples among {n_workers} workers")
        starts = [rank * n_samples // n_workers for rank in range(n_workers)]
        ends = [*starts[1:], n_samples]
        return [range(starts[rank], ends[rank]) for rank in range(n_workers)]

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
        each(when_there_are_shards(not_all_once), "where does each range begin and end? Return a list of "
                                                  "ranges"),
        each(when_there_are_shards(uneven), "which workers get what is left over?"),
    )
    mistakes = (
        (CUT, SIZE, "the last worker gets the whole remainder. Spread it over the workers"),
        (((CUT, SIZE), (NEXT_ONE, "[start + size for start in starts]")), "who takes what is left over?"),
        (CUT, UP, "lengths that are rounded up leave too little for the last worker"),
        ("n_samples]", "n_samples + 1]", "a range ends just before its second number"),
        (CHECKED, "if n_workers < 1:", "ask for more workers than samples, too, because a shard would be "
                                       "empty"),
        (CHECKED, "if n_workers > n_samples:", "ask for fewer than one worker, too, before you divide"),
        ("raise ValueError(", "raise IndexError(", RAISE),
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
    task = ("`states` is a list with one `state_dict` for each worker. There may be any number of workers, "
            "and all dicts have the same names and shapes. Return a new dict of tensors, the mean of all, "
            "for the global model. Every tensor keeps its dtype. For integer tensors (BatchNorm counts its "
            "batches in one), cut off the fraction of the mean. Do not change the workers' models, nor "
            "`states`.")
    hints = ("`torch.stack([state[name] for state in states])` puts one tensor of every worker into a "
             "tensor with one more dimension. Along which dimension do you take the mean?",
             "`mean` refuses integers. Convert to double first, and back with `.to(states[0][name].dtype)`.")
    explanation = ("Stacking makes a new tensor, so no worker's tensor is changed or shared. Converting the "
                   "mean back to the dtype cuts off the fraction of integers.")
    why = ("a server of federated learning does just this. If you add into the first worker's tensors, or "
           "hand out the same memory twice, workers train one model without knowing it.")
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
        nothing("entries", "look for `pop`, `del`, `clear` and assignments to a dict that you were given",
                "none of those in `states` is gone, or another one"),
        same("type", "look at the line with `return`"),
        nothing("missing", "which names do you skip? A list or an array is no tensor",
                "a tensor for every name of the state dicts, and for no other"),
        same("kind", "convert the mean back to the dtype. And along which dimension is it?"),
        same("mean", "by what do you divide, and when? Add first, in double. Does every worker count the "
                     "same?",
             within=1e-5),
        nothing("in a worker's memory", "you return a tensor as you got it, so both would be trained",
                "tensors of its own"),
    )
    mistakes = (
        (".mean(0)", ".sum(0)", "what is missing between a sum and a mean?"),
        (".mean(0)", ".sum(0).div(2)", "there need not be two workers. By what do you divide?"),
        (MEAN, MEAN.replace(".to", ".round().to"), "its fraction is cut off, and not rounded"),
        (MEAN, "sum(one / len(states) for one in tensor).to(tensor.dtype)",
         "add first, then divide. Thirds are not exact, so an integer may be too small by one"),
        (".double()", ".float()", "in which dtype do you compute? float32 keeps seven digits"),
        (MEAN, "(sum(tensor) / len(states)).to(tensor.dtype)",
         "in which dtype do you add? `uint8` ends at 255 and begins again. Convert first"),
        ("stacked.items()", "stacked.items() if tensor.is_floating_point()",
         "average integer tensors like the others. BatchNorm counts its batches in one"),
        (MEAN, "tensor[0].clone()", "this is worker 0's own tensor, not the mean"),
        (MEAN, "states[0][name].copy_(tensor.double().mean(0))", WRITES),
    )


START = "    processes = [start(rank) for rank in range(n_workers)]\n"
JOIN = "    for process in processes:\n        process.join()\n"
WAIT = "for which processes do you call `join()`? A pause, or a `join` with a limit, is only a guess"


class RunEpoch(Table):
    title = "Hunt: an epoch that is trained n times over"
    task = ("The cell below holds the loop of the published program. Repair it, so that one epoch is one "
            "epoch: pull down once, start every worker so that all of them run side by side, wait until all "
            "have ended, and aggregate once. `start(rank)` starts a worker and returns its process, which "
            "has `join()`.")
    hints = ("Both loops call their variable `rank`. How often does the inner one run?",
             "Start all workers before you wait for the first one. Otherwise they run one after the other.")
    explanation = ("The outer `for rank` only repeated the epoch: with n workers, every worker was started "
                   "n times. One loop starts the workers, and a second one waits for them.")
    why = ("the log showed every epoch n times and the run took n times as long. Nothing else was wrong. "
           "Count what you start: if the number of passes is not what you planned, no comparison holds.")
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
        same("ranks started", "how often does each loop around `start(rank)` run? And what is `rank` then?"),
        same("calls", "what stands inside a loop, what does not, and in which order?"),
        nothing("still training", WAIT, "`aggregate()` comes after every worker has ended"),
        nothing("ended by force", "`terminate` and `kill` end a worker that still trains",
                "none: wait for it"),
        same("workers side by side", "when do you call `join()`? It waits until the process has ended"),
    )
    mistakes = (
        ((("    pull_down()\n", "    for rank in range(n_workers):\n     pull_down()\n"),
          (START, f" {START}"), (JOIN, "     for process in processes: process.join()\n")),
         "how many loops stand around `start(rank)`? One is enough"),
        (START + JOIN, "    for rank in range(n_workers):\n        start(rank).join()\n",
         "`join()` waits until the process has ended. So start all workers before you wait for the first"),
        (START, START.replace("[", "(").replace("]", ")"),
         "a generator starts a worker only when the loop asks for it. Use a list"),
        (JOIN, "", WAIT),
        (JOIN, "    processes[-1].join()\n", "wait for every worker. The last one to start may end first"),
        ("process.join()", "process.kill(), process.join()", "`kill` ends a worker that still trains"),
        ("process.join()", "process.join(), aggregate()", "`aggregate()` is inside a loop"),
        ("range(n_workers)", "range(1, n_workers + 1)", "ranks are counted from 0"),
    )


#: Collectives that return in no rank before all ranks have come.
MEETS = re.compile(r"\b(barrier|all|reduce_scatter)|\b(reduce|gather)\b.*\b(broadcast|scatter)\b")
PAUSE = "where do the ranks wait for each other? A pause (`sleep`) is only a guess"


def waits_for_nobody(mine, wanted, case):
    if not mine["waits for all"]:
        return "after its last batch it waits for nobody", "no rank returns before all are done"


class TrainEpoch(Table, InGroup):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`. The last rank has one batch "
            "more than the others. `step(batch)` trains on a batch, and `barrier()` waits until **all** "
            "ranks are waiting. Train on every batch once. Return only when every rank has trained on all "
            "of its batches, however long it takes.")
    hints = ("How often does rank 0 come to the barrier, and how often the last rank? Who is missing, and "
             "when?",
             "All ranks share the end of the epoch. They need not share every step.")
    explanation = ("A barrier waits for all ranks. If you call it once per batch, the last rank calls it "
                   "more often. If you call it once per epoch, all ranks call it equally often.")
    why = ("all ranks must call a barrier, like every collective, equally often. Remainders, uneven shards, "
           "an early `break` or an `if rank == 0` break this rule. Then there is no error, but silence.")
    world_sizes = (2, 3)
    waiting = "how often does each rank call `barrier()`? The last rank has one batch more"
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
        same("times trained", "which batches does the loop leave out or repeat?"),
        nothing("calls under way in threads", "join a thread of your own before you return",
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
         "with `async_op=True`, `barrier` returns at once. Call `.wait()` on what it returns"),
        ("        step(batch)\n    barrier()", "        step(batch)\n        try:\n            barrier()\n"
         "        except RuntimeError:\n            pass", "caught the error",
         f"you caught the error of a rank that had waited in vain. {waiting.capitalize()}"),
    )


split, aggregate, run_epoch, train_epoch = Split(), Aggregate(), RunEpoch(), TrainEpoch()
