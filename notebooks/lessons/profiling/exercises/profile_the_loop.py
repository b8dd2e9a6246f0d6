"""A profiler counts its steps by calls of `step()`: where they stand decides what it records."""

import math
import os
from collections import defaultdict
from itertools import pairwise, zip_longest

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each
from helpers.instruments.traces import TraceError, read
from helpers.reporting import RUN_FOLDER

#: Before the names of the labels that say whose work is inside, so that an answer may have labels of its own.
OURS = "of the exercise: "


def work_by_step(prof):
    """{number of the profiler's step: what ran inside it, in order}, from the trace it writes.

    What ran is "batch a", "update", or the name of an operator that belongs to neither.
    """
    path = f"{os.environ[RUN_FOLDER]}/loop.json"
    prof.export_chrome_trace(path)
    try:
        trace = read(path)
    except TraceError:  # the steps that were recorded hold nothing
        return {}
    labels = [event for event in trace.events if event.name.startswith(OURS)]

    def is_ours(operator):
        return any(label.begin_us <= operator.begin_us < label.end_us for label in labels)

    operators = [event for event in trace.events if event.name.startswith("aten::") and not is_ours(event)]
    in_order = sorted(labels + operators, key=lambda event: event.begin_us)
    by_step = {}
    for number, (begin, end) in trace.steps.items():
        inside = [event.name.removeprefix(OURS) for event in in_order
                  if begin <= event.begin_us and event.end_us <= end]
        if inside:
            by_step[number] = inside
    return by_step


def counted_profiler(traces, did):
    """A profiler that appends what its traces hold, and {method: how much was in `did` at each of its calls}."""
    os.environ["KINETO_LOG_LEVEL"] = "6"  # its own log is quiet
    from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    prof = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                   on_trace_ready=lambda prof: traces.append(work_by_step(prof)))
    calls = defaultdict(list)
    step, stop = prof.step, prof.stop

    def step_out_of_warmup_and_stop():
        if prof.current_action is ProfilerAction.WARMUP:  # ended there, torch 2.11 dies of SIGSEGV
            prof.on_trace_ready = None
            step()
        stop()
        prof.on_trace_ready = None  # whoever goes on after it has nothing to write, and torch dies of trying

    def counting(name, function, most):
        def called():
            calls[name].append(len(did))
            if len(calls[name]) <= most:
                function()

        return called

    prof.start = counting("start", prof.start, 1)
    prof.stop = counting("stop", step_out_of_warmup_and_stop, 1)
    prof.step = counting("step", step, math.inf)
    return prof, calls


class ProfileTheLoop(Exercise):
    title = "Repair the profiled loop"
    task = ("`accumulate(batch)` adds the gradients of a batch to those that are there. After every second batch, "
            "`update()` takes the optimizer's step. Train on all `batches`, an even number, and profile the "
            "training with `prof`. Its schedule waits 1 step, warms up for 1, and records 3. One step of the profiler "
            "is one update, before it records, too: step n must hold the two batches of update n, counted from 0, then "
            "that update, and nothing else, with few batches, too. Start the profiler once, and leave `batches` as it "
            "is.")
    hints = (
        "The schedule counts calls of `prof.step()`. How many calls does the profiler see, and how many "
        "updates are there?",
        "`prof.step()` says that this step is over and the next one begins. At which place in the loop is "
        "that true?",
        "`with prof:` around the loop starts the profiler and stops it. When it stops, it writes a trace "
        "that has begun.",
    )
    explanation = ("Call `step()` once after each update, inside the `with` block. Train on every batch, whatever the "
                   "profiler does.")
    why = ("A profiler records only what its schedule tells it to, and the schedule counts calls of "
           "`step()`. Called once after the loop, `step()` leaves the profiler in its first waiting step for "
           "the whole training. There is no error and no trace. Called after each batch, it records half an update "
           "as a step.")

    cases = {"16 batches": 16, "8 batches": 8}

    def answer(prof, batches, accumulate, update):
        with prof:                                             #: start
            for number, batch in enumerate(batches, start=1):  #: loop
                accumulate(batch)
                if number % 2 == 0:                            #: second
                    update()                                   #: update
                    prof.step()                                #: step

    def observe(profile_the_loop, count):
        from torch.profiler import record_function

        did, traces = [], []
        prof, calls = counted_profiler(traces, did)
        letters = "abcdefghijklmnop"[:count]
        batches = list(letters)

        def work(name):
            did.append(name)
            with record_function(f"{OURS}{name}"):
                torch.ones(16, 16) @ torch.ones(16, 16)

        profile_the_loop(prof, batches, lambda batch: work(f"batch {batch}"), lambda: work("update"))

        prof.on_trace_ready = None
        prof.stop()  # or it would be in the way of the next one
        begun = (calls["start"] + calls["step"])[:3]  # of the two steps before those that are recorded, and their end
        return {
            "starts of the profiler": len(calls["start"]),
            "training": did,
            "batches afterwards": "".join(map(str, batches)),
            "calls of `step()`": len(calls["step"]),
            "before the trace": {step: did[begin:end] for step, (begin, end) in enumerate(pairwise(begun))},
            "trace": traces[0] if traces else None,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    one_start = "`with prof:` around the loop starts the profiler, once, and stops it after the last batch"

    def other_training(mine, wanted, count):
        pairs = zip_longest(mine["training"], wanted["training"], fillvalue="nothing")
        for number, (did, should) in enumerate(pairs):
            if did != should:
                after = wanted["training"][number - 1] if number else "the start"
                return f"after {after} the training did {did}", should

    def changed_batches(mine, wanted, count):
        held, should = mine["batches afterwards"], wanted["batches afterwards"]
        if held != should:
            return f"afterwards `batches` holds {held or 'nothing'}", f"{should}, as before"

    def nothing_written(mine, wanted, count):
        if mine["trace"] is None:
            return "no trace was written", f"a trace of the steps {tuple(wanted['trace'])}, counted from 0"

    def steps_miscounted(mine, wanted, count):
        calls, updates = mine["calls of `step()`"], count // 2
        if calls not in (updates - 1, updates) and mine["trace"] != wanted["trace"]:
            return f"calls of `step()`: {calls}", f"{updates}, one for each update"

    def work_of_its_own(mine, wanted, count):
        for step, names in mine["trace"].items():
            own = [name for name in names if name.startswith("aten::")]
            if own:
                return f"step {step} also holds {own[0]}", "nothing but the work of `accumulate` and `update`"

    def other_trace(mine, wanted, count):
        by_step, should_be = (it["before the trace"] | it["trace"] for it in (mine, wanted))
        for step in sorted(by_step.keys() | should_be.keys()):
            held = " then ".join(by_step.get(step, [])) or "nothing"
            should = " then ".join(should_be.get(step, [])) or "nothing"
            if held != should:
                return f"step {step} holds {held}", should

    rules = (
        between("starts of the profiler", lambda wanted, case: (0, 1), one_start),
        each(other_training, "what ends the loop, and when is `update()` called? Train on each batch once, and update "
                             "after every second one, whatever the profiler has already"),
        each(changed_batches, "the list belongs to the caller, who may need it for the next epoch"),
        each(nothing_written, "how often is `prof.step()` called while the profiler runs, and what does the schedule "
                              "do with so many steps?"),
        each(steps_miscounted, "where `prof.step()` stands, and how far it is indented"),
        each(work_of_its_own, "which line of yours computes something between two calls of `step()`?"),
        each(other_trace,
             "`step()` says that a step is over: is it called between one update and the next batch? And is "
             "everything done while the profiler runs, inside `with prof:`?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the schedule counts calls of `step()`: how many does it see, and when?",
                loop="for number, batch in enumerate(batches, start=1):\n"
                     "    accumulate(batch)\n"
                     "    if number % 2 == 0:\n"
                     "        update()\n"
                     "prof.step()"),
        mistake("a step is over when its update is done: here `step()` follows each batch, and an update has two",
                second="if number % 2 == 0:\n"
                       "    update()\n"
                       "prof.step()"),
        mistake("`step()` says that a step is over, and here its update comes after it",
                update="prof.step()\nupdate()", step=""),
        mistake("`step()` is called twice in each update", update="prof.step()\nupdate()"),
        mistake(one_start, start="if True:"),
        mistake(one_start, start="prof.start()\nif True:"),
        mistake(one_start, start="for number, batch in enumerate(batches, start=1):\n"
                                 "    with prof:\n"
                                 "        accumulate(batch)\n"
                                 "        if number % 2 == 0:\n"
                                 "            update()\n"
                                 "            prof.step()"),
        mistake("the training goes on when the profiler has its trace",
                loop="for number, batch in enumerate(batches[:10], start=1):"),
    )


profile_the_loop = ProfileTheLoop()
