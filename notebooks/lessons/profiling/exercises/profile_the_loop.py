"""A profiler counts its steps by calls of `step()`: where they stand decides what it records."""

import math
import os
from collections import Counter

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, same
from helpers.instruments.traces import TraceError, read
from helpers.reporting import RUN_FOLDER


def batches_by_step(prof):
    """{number of the profiler's step: the batches whose work lies inside it}, from the trace it writes."""
    path = f"{os.environ[RUN_FOLDER]}/loop.json"
    prof.export_chrome_trace(path)
    try:
        trace = read(path)
    except TraceError:  # the steps that were recorded hold nothing
        return {}
    work = [event.begin_us for event in trace.events if event.name == "aten::mm"]
    batches = []
    for event in trace.events:
        if event.name.startswith("batch ") and any(event.begin_us <= begin < event.end_us for begin in work):
            batches.append(event)  # not if it is a label around nothing
    by_step = {}
    for number, (begin, end) in trace.steps.items():
        inside = [batch for batch in batches if begin <= batch.begin_us and batch.end_us <= end]
        by_step[number] = "".join(batch.name.removeprefix("batch ") for batch in inside)
    return by_step


def counted_profiler(traces):
    """A profiler that appends what its traces hold, and {method: how often it was called}."""
    os.environ["KINETO_LOG_LEVEL"] = "6"  # its own log is quiet
    from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    prof = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                   on_trace_ready=lambda prof: traces.append(batches_by_step(prof)))
    calls = Counter()
    step, stop = prof.step, prof.stop

    def step_out_of_warmup_and_stop():
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

    prof.start = counting("start", prof.start, 1)
    prof.stop = counting("stop", step_out_of_warmup_and_stop, 1)
    prof.step = counting("step", step, math.inf)
    return prof, calls


class ProfileTheLoop(Exercise):
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
        with prof:                              #: start
            for batch in batches:               #: loop
                train_step(batch)               #: train
                prof.step()                     #: step

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
        trace = None
        if traces:
            trace = {f"step {number}": traces[0].get(number, "") for number in range(2, min(count, 5))}
        return {
            "starts of the profiler": calls["start"],
            "trained on": "".join(trained_on),
            "calls of `step()`": calls["step"],
            "trace": trace,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    one_start = "`with prof:` around the loop starts and stops the profiler: does anything else start it?"

    def steps_miscounted(mine, wanted, count):
        calls = mine["calls of `step()`"]
        recorded_as_wanted = calls > 0 and mine["trace"] == wanted["trace"]
        if calls in (count - 1, count) or recorded_as_wanted:
            return None
        written = "no trace was written" if mine["trace"] is None else "a trace was written"
        return f"calls of `step()`: {calls}, and {written}", f"{count}, one for each batch"

    rules = (
        between("starts of the profiler", lambda wanted, case: (0, 1), one_start),
        same("trained on", "what ends the loop? Train on each batch once, whatever the profiler has already"),
        each(steps_miscounted, "where `prof.step()` stands, and how far it is indented"),
        same("trace",
             "`step()` says that a step is over: is it called between one batch's work and the next one's? And is "
             "every batch trained while the profiler runs, inside `with prof:`?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("`step()` comes after each batch, not after the loop",
                loop="for batch in batches:\n"
                     "    train_step(batch)\n"
                     "prof.step()"),
        mistake("the schedule counts calls of `step()`", step=""),
        mistake("`step()` says that a step is over, and here its work comes after it",
                train="prof.step()\ntrain_step(batch)", step=""),
        mistake("`step()` is called twice in each round", train="prof.step()\ntrain_step(batch)"),
        mistake(one_start, start="if True:"),
        mistake(one_start, start="prof.start()\nif True:"),
        mistake(one_start, start="for batch in batches:\n"
                                 "    with prof:\n"
                                 "        train_step(batch)\n"
                                 "        prof.step()"),
        mistake("the training goes on when the profiler has its trace", loop="for batch in batches[:5]:"),
    )


profile_the_loop = ProfileTheLoop()
