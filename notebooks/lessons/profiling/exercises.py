"""The exercises of profiling: record the right steps, find who is to blame, make a slow training quick."""

import math
import operator
import os
import random
from collections import Counter
from dataclasses import replace
from itertools import product

import torch

from helpers.exercises.engine import CORRECT, Feedback
from helpers.exercises.group import InGroup
from helpers.exercises.in_rank import Lost
from helpers.exercises.tables import Table, between, each, first_difference, holds, nothing, same
from helpers.instruments.traces import COMMUNICATION, OTHER, Event, Trace, TraceError, read, together
from helpers.instruments.waits import meet
from helpers.reporting import RUN_FOLDER
from lessons.profiling.counted import BATCH, EPOCHS, FASTER, IMAGES, STEPS, counted, times_as_fast

TRAIN, STEP_CALL = "            train_step(batch)\n", "            prof.step()\n"
BETWEEN = ("`step()` says that a step is over: is it called between one batch's work and the next one's? And "
           "is every batch trained while the profiler runs, inside `with prof:`?")
STARTS = "`with prof:` around the loop starts and stops the profiler: does anything else start it?"


def batches_by_step(prof):
    """{number of the profiler's step: the batches whose work lies inside it}, from the trace it writes."""
    prof.export_chrome_trace(path := f"{os.environ[RUN_FOLDER]}/loop.json")
    try:
        trace = read(path)
    except TraceError:  # the steps that were recorded hold nothing
        return {}
    work = [event.begin_us for event in trace.events if event.name == "aten::mm"]
    batches = [event for event in trace.events if event.name.startswith("batch ")
               and any(event.begin_us <= at < event.end_us for at in work)]  # a label around nothing is none
    return {number: "".join(one.name[6:] for one in batches if begin <= one.begin_us and one.end_us <= end)
            for number, (begin, end) in trace.steps.items()}


def counted_profiler(traces):
    """A profiler that appends what its traces hold, and {method: how often it was called}."""
    os.environ["KINETO_LOG_LEVEL"] = "6"  # its own log is quiet
    from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    prof = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                   on_trace_ready=lambda prof: traces.append(batches_by_step(prof)))
    calls, step, stop = Counter(), prof.step, prof.stop

    def ends():
        if prof.current_action is ProfilerAction.WARMUP:  # ended there, torch 2.11 dies of SIGSEGV
            prof.on_trace_ready = None
            step()
        stop()

    def counting(name, function, most):
        def called():
            calls[name] += 1
            if calls[name] <= most:
                function()

        return called

    prof.start, prof.stop = counting("start", prof.start, 1), counting("stop", ends, 1)
    prof.step = counting("step", step, math.inf)
    return prof, calls


def steps_miscounted(mine, wanted, count):
    calls = mine["calls of `step()`"]
    recorded_by_it = calls > 0 and mine["trace"] == wanted["trace"]
    if calls not in (count - 1, count) and not recorded_by_it:
        trace = "and no trace was written" if mine["trace"] is None else "and a trace was written"
        return f"calls of `step()`: {calls}, {trace}", f"{count}, one for each batch"


class ProfileTheLoop(Table):
    title = "Repair the profiled loop"
    task = ("Train on every batch of `batches` with `train_step(batch)`, and profile it with `prof`. Its "
            "schedule waits 1 step, warms up for 1, and records 3. Start the profiler once. In the trace "
            "that it writes, step number n must hold batch number n and nothing else, with few batches, too.")
    hints = (
        "The schedule counts calls of `prof.step()`. How many calls does the profiler see, and how many "
        "batches are there?",
        "`prof.step()` says that this step is over and the next one begins. At which place in the loop is "
        "that true?",
        "`with prof:` around the loop starts the profiler and stops it. When it stops, it writes a trace "
        "that has begun.",
    )
    explanation = ("Call `step()` once at the end of each round, inside the `with` block. Train on every "
                   "batch, whatever the profiler does.")
    why = ("A profiler records only what its schedule tells it to, and the schedule counts calls of "
           "`step()`. Called once after the loop, `step()` leaves the profiler in its first waiting step for "
           "the whole training. There is no error and no trace.")
    cases = {"8 batches": 8, "4 batches": 4}

    def answer(prof, batches, train_step):
        with prof:
            for batch in batches:
                train_step(batch)
                prof.step()

    def observe(profile_the_loop, count):
        from torch.profiler import record_function

        trained_on, traces = [], []
        prof, calls = counted_profiler(traces)

        def train_step(batch):
            trained_on.append(f"{batch}")
            with record_function(f"batch {batch}"):
                torch.ones(16, 16) @ torch.ones(16, 16)

        profile_the_loop(prof, list("abcdefgh"[:count]), train_step)
        prof.on_trace_ready = None
        prof.stop()  # or it would be in the way of the next one
        recorded = range(2, min(count, 5))
        held = {f"step {number}": traces[0].get(number, "") for number in recorded} if traces else None
        return {"starts of the profiler": calls["start"], "trained on": "".join(trained_on),
                "calls of `step()`": calls["step"], "trace": held}

    rules = (
        between("starts of the profiler", lambda wanted, case: (0, 1), STARTS),
        same("trained on", "what ends the loop? Train on each batch once, whatever the profiler has already"),
        each(steps_miscounted, "where `prof.step()` stands, and how far it is indented"),
        same("trace", BETWEEN),
    )
    mistakes = (
        (TRAIN + STEP_CALL, f"{TRAIN}        prof.step()\n",
         "`step()` comes after each batch, not after the loop"),
        (STEP_CALL, "", "the schedule counts calls of `step()`"),
        (TRAIN + STEP_CALL, STEP_CALL + TRAIN, "`step()` says that a step is over, and here its work comes "
                                               "after it"),
        (TRAIN, STEP_CALL + TRAIN, "`step()` is called twice in each round"),
        ("    with prof:", "    if True:", STARTS),
        ("    with prof:", "    prof.start()\n    if True:", STARTS),
        ("    with prof:\n        for batch in batches:", "    for batch in batches:\n        with prof:",
         STARTS),
        ("in batches", "in batches[:5]", "the training goes on when the profiler has its trace"),
    )


LABELS = ("read files", "augment", "forward", "write log")


def traces_of(size, culprit, label, long):
    """Three steps of `size` ranks, made up: a rank held up while it records would be a second culprit."""
    draw, now, events = random.Random(7), [0.0] * size, [[] for _ in range(size)]
    for _ in range(3):
        for rank, part in product(range(size), LABELS):
            took = (30_000 if part == long else 1_000) * draw.uniform(0.95, 1.05)  # microseconds
            if (rank, part) == (culprit, label):
                took += 18_000
            events[rank].append(Event(part, now[rank], took, "thread 1", OTHER))
            now[rank] += took
        done = max(now) + 500
        for rank, begin in enumerate(now):
            events[rank].append(Event("gloo:all_reduce", begin, done - begin, "thread 2", COMMUNICATION,
                                      group=("0", tuple(range(size)))))
        now = [done] * size
    return together([Trace(of_rank, rank) for rank, of_rank in enumerate(events)])


def as_pair(found):
    """`(rank, label)`, whatever the types of its numbers; else what it is, in words."""
    try:
        rank, label = found
        return operator.index(rank), str(label)
    except (TypeError, ValueError):
        return f"`{found!r:.60}`"


def no_pair(mine, wanted, case):
    for found in mine["named"].values():
        if isinstance(found, str):
            return f"your function returned {found}", "`(rank, label)`, a number and a text"


def another_rank(mine, wanted, case):
    for (culprit, part, _), (rank, _) in mine["named"].items():
        if rank != culprit:
            return f"you named rank {rank}", f"rank {culprit} keeps the others waiting, with {part!r}"


def another_label(mine, wanted, case):
    for (_, part, _), (rank, label) in mine["named"].items():
        if label != part:
            return (f"rank {rank} is right, but you named {label!r}",
                    f"it keeps the others waiting with {part!r}")


class FindTheCulprit(Table):
    title = "Who holds everybody up, and with what?"
    task = ("`traces` are the traces of all ranks, by rank, on one clock. One rank takes longer with one "
            "part of its work, so the other ranks wait for it in the all-reduce. Return `(rank, label)`: "
            "that rank and the label of that part. The parts are labelled with `record_function`: "
            f"{', '.join(LABELS)}. "
            "You are given many traces of two, three and four ranks. They are made up, so "
            "that only one rank and one part are to blame.")
    hints = (
        "A rank that waits is not to blame. `waited_for(traces)` is a dict {(rank that waits, rank it waits "
        "for): seconds}.",
        "The label with the most time may take as long in every rank. Compare the ranks.",
        "`traces[rank].self_seconds()` is a dict {name: seconds}. Which name differs most from another "
        "rank's?",
    )
    explanation = ("The rank that others wait for most is the late one. The part on which it spends more "
                   "time than a waiting rank is the reason. A part that takes long in all ranks makes nobody "
                   "wait.")
    why = ("In real training the slow rank has a slow disk, a hot GPU, or more to log. Its own trace looks "
           "innocent, because it never waits. You see it only beside the other ranks' traces.")
    cases = {"2 ranks": 2, "3 ranks": 3, "4 ranks": 4}

    def answer(traces):
        from helpers.instruments.traces import waited_for

        lost = waited_for(traces)
        rank = max(lost, key=lost.get)[1]
        late, other = traces[rank].self_seconds(), traces[rank - 1].self_seconds()
        return rank, max(late, key=lambda name: late[name] - other.get(name, 0))

    def observe(find_the_culprit, size):
        truths = product(range(size), LABELS, LABELS)  # the rank, its label, and one that is long everywhere
        return {"named": {truth: as_pair(find_the_culprit(traces_of(size, *truth))) for truth in truths}}

    rules = (
        each(no_pair, "the `return`"),
        each(another_rank, "who waits, and for whom? `waited_for(traces)`"),
        each(another_label, "compare the rank with one that waits, name by name: which of the four parts "
                            "takes longer? (In the all-reduce, the waiting shows.)"),
    )
    mistakes = (
        ("key=lost.get)[1]", "key=lost.get)[0]", "that rank waits, so it is not to blame: which rank does it "
                                                 "wait for?"),
        ("late[name] - other.get(name, 0)", "late[name]", "that part takes about as long in the others"),
        ("late[name] - other.get(name, 0)", "other.get(name, 0) - late[name]",
         "where does the late rank take longer? What is subtracted from what?"),
        ("traces[rank - 1]", "traces[0]", "rank 0 may be the late one itself: compare with one that waits"),
        ("max(late, key=lambda name: late[name] - other.get(name, 0))",
         "max(other, key=lambda name: other[name] - late.get(name, 0))",
         "the all-reduce only shows the waiting: which part before it took longer?"),
    )


#: {what is counted: (the fault, what a trace shows of it, how often that may be: far from both sides)}
FAULTS = {
    "operators": ("images normalised row by row", "{:,} operators and lines besides the network",
                  20 * IMAGES * EPOCHS),
    "copies": ("all images converted again and again", "{} times the same operator on all images", EPOCHS),
    "forwards": ("small pieces", "{} forwards, each with a backward", STEPS),
    "collectives": ("weights compared at every step", "{} collectives that are not DDP's", 3 * EPOCHS),
    "flushes": ("the log flushed at every step", "{} gaps of 8 ms in which no operator runs", EPOCHS + 1),
}
PIXELS = "compare your batch with `normalised(image)`, image by image: `torch.allclose`"
ARRAY = "`-=` and `sub_` write into it, and so they do where `torch.from_numpy` shares its memory"
AVERAGED = "`model(…)` averages gradients; `model.module(…)`, or one under `no_sync()`, does not"
LARGER = "larger batches change the training and its result"
EACH_STEP = (f"in each step: the gradient of the mean loss of {BATCH} images (`/ 8` made it from eight "
             "parts), of this step alone (`zero_grad`), the same optimizer, precision and order of images")
GAPS = "something new takes time: record a trace of your training, and look at its gaps"
TRACE = "a trace: what is in it that a training does not need, and which line makes that?"


def different_models(mine, wanted, case):
    if any(first_difference(one["weights"], mine[0]["weights"], 1e-7) for one in mine):
        return "the ranks hold different models at the end", "the same model everywhere"


def other_weights(mine, wanted, case):
    if first_difference(mine["weights"], wanted["weights"], 2e-6):
        way = "lower" if mine["loss"] < wanted["loss"] else "higher"
        return (f"the loss ends {way}: {mine['loss']:.5f}",
                f"{wanted['loss']:.5f}, and the same weights as before")


def no_log(mine, wanted, case):
    for epoch in range(EPOCHS):
        if not any(f"\nepoch {epoch}" in one["log"] for one in mine):  # one rank may speak for all
            return f"the log holds no line of epoch {epoch}", f"one that begins with `epoch {epoch}`, flushed"


def left_in(mine):
    """{name of a fault that is left: how often it shows, in the worst rank}"""
    counts = {name: max(one[name] for one in mine) for name in FAULTS}
    return {name: count for name, count in counts.items() if count > FAULTS[name][2]}


def faults_left(mine, wanted, case):
    if left_in(mine):
        return (f"the result is right; faults left: {len(left_in(mine))} of {len(FAULTS)}",
                "none of the five is left, and the result stays as it is")


def ticks(mine):
    """A line for each fault: whether it is gone, or what a trace shows of it."""
    left = left_in(mine)
    if len(left) == len(FAULTS):
        return ""  # what the first one is, the trace has to tell
    lines = [f"\nleft: {shown.format(left[name])}" if name in left else f"\ngone: {fault}"
             for name, (fault, shown, _) in FAULTS.items()]
    return "".join(lines)


class MakeItFast(Table, InGroup):
    title = "Performance detective"
    task = (f"`train` wastes most of its time in five ways. Repair it: make it at least {FASTER} times as "
            "fast, with none of the five left and with the same result. The result is the same if the images "
            f"are the same, normalised in the same way, {BATCH} per optimizer step and rank, for as many "
            "epochs, with the same weights at the end. The log must hold at least one line per epoch (`epoch "
            "0 …`), flushed. `model` is in DistributedDataParallel; `images` is a NumPy array, [images, 48, "
            "48].")
    hints = (
        "Look at the trace first. It has thousands of tiny operators in a row. Which line makes them? Could "
        "one operator on the whole batch, or on all images, do the same? `x.mean(-1, keepdim=True)` is a "
        "mean for each row.",
        "`aten::lift_fresh` with a long `aten::copy_` beside it is `torch.tensor(…)` of a large array. How "
        "often is it called, and how often do the images change?",
        "Count the forwards for each optimizer step. Every backward under DDP communicates. Do 32 of these "
        "images not fit at once?",
        "DDP does not call `gloo:all_gather`; the script does. What for, and how often would be enough?",
        "In the gaps nothing is recorded: Python runs, or something outside of torch. What does "
        "`log.flush()` wait for? On a GPU, `loss.item()` in each step makes Python wait, too.",
    )
    explanation = ("Operators on all images convert and normalise them once. 32 images at a time go through "
                   "the network, so there is one all-reduce of gradients per step. The ranks need not "
                   "compare their weights, because DDP keeps them equal. The log stays in memory and is "
                   "flushed once an epoch.")
    why = ("None of the five is a slow operator. The time goes into Python between operators, into copies "
           "and conversions, into waiting for other ranks and for a disk. A trace shows each of them, and in "
           "which order to repair them.")
    timeout, patience, slow = 40, 3, True

    def answer(model, images, labels, epochs, log):
        import torch
        from torch import nn

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        pixels = torch.tensor(images, dtype=torch.float32)
        pixels = (pixels - pixels.mean(-1, keepdim=True)) / 64
        for epoch in range(epochs):
            for start in range(0, len(pixels), 32):
                loss = nn.functional.cross_entropy(model(pixels[start:start + 32]), labels[start:start + 32])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            log.write(f"epoch {epoch}: loss {loss.item():.4f}")
            log.flush()

    def observe(make_it_fast, case):
        return counted(make_it_fast)

    @classmethod
    def run(cls, answer, case, slowly):
        left = super().run(answer, case, slowly)
        if answer is cls.answer or isinstance(left, Lost):
            return left
        if not any(meet("faulty" if left_in([left]) else "")):  # in no rank: only then is there something to time
            left["times as fast"] = times_as_fast(answer)
        return left

    def judge(self, mine, wanted, case, answer):
        feedback = super().judge(mine, wanted, case, answer)
        if feedback is None:
            faster = min(rank["times as fast"] for rank in mine)
            feedback = Feedback(CORRECT, f"{faster:.1f}× as fast", why_it_matters=self.why)
        return replace(feedback, observed=feedback.observed + ticks(mine))

    rules = (
        same("images through the network", "does it see every image in every epoch?"),
        same("pixels, squared and added up", PIXELS, within=0.001),
        nothing("numbers in `images` that have changed", ARRAY, "none: they are not yours"),
        holds(different_models, AVERAGED),
        between("forwards", lambda wanted, case: (STEPS, math.inf), LARGER),
        each(other_weights, EACH_STEP),
        holds(no_log, "`log.write(…)` and `log.flush()`"),
        holds(faults_left, TRACE),
        between("times as fast", lambda wanted, case: (FASTER, math.inf), GAPS),
    )
    mistakes = (
        ("mean(-1, ", "mean((1, 2), ", PIXELS),
        ("model(pixels[", "model.module(pixels[", AVERAGED),
        (" 32", " 128", LARGER),
        ("            optimizer.zero_grad()\n", "", EACH_STEP),
        ("            optimizer.step()\n", "            optimizer.step()\n            log.flush()\n", TRACE),
    )


profile_the_loop, find_the_culprit, make_it_fast = ProfileTheLoop(), FindTheCulprit(), MakeItFast()
