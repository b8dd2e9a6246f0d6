"""Which of several transforms takes most of the time; the clocks show what the check wants, whatever else runs."""

import contextlib
import importlib
import inspect
import time
import timeit
from collections import Counter
from types import BuiltinFunctionType, SimpleNamespace
from typing import NamedTuple
from unittest import mock

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, nothing

#: Milliseconds for which a slow transform waits.
SLOW_MS = 12
#: Seconds that transforms may take in one pipeline before the measuring is ended.
PATIENCE = 2

#: What `time` holds outside of `clocks_of`, which also replaces clocks among the globals of this file.
true_time = SimpleNamespace(sleep=time.sleep, process_time=time.process_time)


class Costs(NamedTuple):
    """What a transform costs, in milliseconds."""

    computes: float = 0.3
    waits: float = 0
    """For a disk."""
    waits_first: float = 0
    """In its first call, besides."""
    per_pixel: bool = False
    """Then `waits` is for an image of 16 pixels, and grows with it."""
    enlarges: int = 1
    """How much longer the image becomes."""


class Pipeline(NamedTuple):
    look: str
    transforms: dict
    """{name: its `Costs`}, in their order; the slow one's place differs from pipeline to pipeline."""


class TooLong(Exception):
    """The transforms of one pipeline have taken more than PATIENCE."""

    __module__ = "builtins"  # a traceback then names it without where it comes from


def transform_that(costs, takes, name, spent, calls):
    """A step of a pipeline: computes and waits as long as it `costs`, and adds seconds to what all have `spent`.

    `takes` is the image that it should be given: its first number says how many transforms it has been through.
    """

    def transform(image):
        waiting = costs.waits
        if costs.per_pixel:
            waiting *= len(image) ** 2 / 16
        if calls[name] == 0:
            waiting += costs.waits_first
        calls[name] += 1
        calls["with another image"] += list(image) != takes
        computing = costs.computes / 1000
        spent["computing"] += computing
        if spent.total() > PATIENCE:
            raise TooLong(f"the transforms have taken {PATIENCE} s; one is more than enough")
        end = true_time.process_time() + computing
        while true_time.process_time() < end:
            pass
        time.sleep(waiting / 1000)  # which is `clocks_of`'s, and adds it to what was spent
        return returned_by(costs, image)

    return transform


def returned_by(costs, image):
    """The image after one transform more."""
    been_through = image[0] if len(image) else 0
    return [been_through + 1] + [0] * (len(image) * costs.enlarges - 1)


@contextlib.contextmanager
def clocks_of(spent, scope):
    """All clocks of `time` show what the transforms have spent, and what was slept, whatever else runs here.

    `scope` holds the globals of the learner's function, which may have clocks by names of their own.
    """

    def seconds(kinds):
        spent["looking"] += 1e-5  # so that a loop which waits for a moment gets there
        return sum(spent[kind] for kind in kinds)

    def clock_of(kinds):
        return lambda: 1000.0 + seconds(kinds)  # all begin at 1000 s

    def clock_in_ns_of(kinds):
        return lambda: 1000 * 10**9 + int(10**9 * seconds(kinds))

    def sleep(duration):
        spent["waiting"] += duration
        true_time.sleep(duration)

    clocks = {}
    for name in ("perf_counter", "monotonic", "time"):
        clocks[name] = clock_of(("computing", "waiting", "looking"))
        clocks[f"{name}_ns"] = clock_in_ns_of(("computing", "waiting", "looking"))
    for name in ("process_time", "thread_time"):
        clocks[name] = clock_of(("computing",))
        clocks[f"{name}_ns"] = clock_in_ns_of(("computing",))

    by_true_clock = {getattr(time, name): clock for name, clock in clocks.items()}
    learners = {}
    for name, value in scope.items():
        if type(value) is BuiltinFunctionType and value in by_true_clock:
            learners[name] = by_true_clock[value]
    with mock.patch.multiple(time, sleep=sleep, **clocks), mock.patch.dict(scope, learners):
        yield


class SlowestTransform(Exercise):
    title = "Find the slow transform"
    task = ("`transforms` is a list of functions. A sample goes through them one after another: `image` goes "
            "into the first, and each gets what the one before it returned. Thousands of samples go through "
            "them. Measure, and return the one **function** that takes most of that time. The check has its "
            "own pipelines: some transforms are slow in their first call only, some depend on the size of "
            "the image, some wait for a disk. You have two seconds per pipeline. Leave `transforms` and `image` as "
            "they are.")
    hints = (
        "Take the time before and after each call, and hand what one transform returns to the next one.",
        "One sample is not enough. Send several through, and add up the times of each transform, "
        "without the first sample. `time.perf_counter()` counts waiting, too.",
    )
    explanation = ("The transforms are timed as they are used: one after another, on several samples. The "
                   "first sample pays for all preparations, so it is left out.")
    why = ("the slow step of an input pipeline is often not the one that you suspect. Measure each step as "
           "it is really used, more than once, and with a clock that sees waiting. Then repair that one.")

    which_clock = ("do you time each call from just before it to just after it, several times, with a clock that "
                   "sees waiting, too? `process_time` counts computing only, `perf_counter` all. And is it `max`, "
                   "not `min`?")
    first_call = "the first call says nothing about thousands: is it among what you measure?"
    handed_on = "does each transform get what the one before it returned?"

    cases = {
        "one transform waits for a disk": Pipeline(which_clock, {
            "crop": Costs(),
            "flip": Costs(computes=2),
            "rotate": Costs(computes=0, waits=2 * SLOW_MS),
            "blur": Costs(),
            "pad": Costs(),
        }),
        "one prepares itself in its first call": Pipeline(first_call, {
            "blur": Costs(waits=SLOW_MS),
            "pad": Costs(),
            "crop": Costs(),
            "flip": Costs(waits_first=20 * SLOW_MS),
            "rotate": Costs(),
        }),
        "one enlarges the image for those after it": Pipeline(handed_on, {
            "crop": Costs(computes=2),
            "enlarge": Costs(computes=2, enlarges=4),
            "blur": Costs(computes=2),
            "sharpen": Costs(waits=SLOW_MS / 16, per_pixel=True),
        }),
    }
    slow = True

    def answer(transforms, image):
        import time

        seconds = [0] * len(transforms)
        for sample in range(6):                                         #: samples
            passed = image                                              #: begin
            for number, transform in enumerate(transforms):
                began = time.perf_counter()                             #: before
                passed = transform(passed)                              #: call
                if sample > 0:                                          #: first
                    seconds[number] += time.perf_counter() - began      #: after
        return transforms[seconds.index(max(seconds))]                  #: slowest

    def observe(slowest_transform, pipeline):
        spent = Counter()  # seconds, by what they were spent on
        calls = Counter()
        transforms = {}
        image = [0] * 4
        for name, costs in pipeline.transforms.items():
            transforms[name] = transform_that(costs, image, name, spent, calls)
            image = returned_by(costs, image)
        scope = getattr(inspect.unwrap(slowest_transform), "__globals__", {})

        given, image = list(transforms.values()), [0] * 4
        with clocks_of(spent, scope):
            importlib.reload(timeit)  # it has taken its clock from `time` when it was imported
            returned = slowest_transform(given, image)

        found = [name for name, transform in transforms.items() if transform is returned]
        return {
            "slowest": found[0] if found else f"{kind_of(returned)}, which is not in the list",
            "called again": sum(calls[name] > 1 for name in transforms),
            "calls with another image": calls["with another image"],
            "changed": "`transforms`" if given != list(transforms.values()) else "`image`" if image != [0] * 4 else "",
        }

    # ---------------------------------------------------------------------------------------- what must hold

    left_alone = ("`sort`, `pop`, `append` and `x[0] = …` change what you were given: make a list of your own, "
                  "for example with `sorted(…)`")
    the_function = "return the function itself, not its number, its name or its time"

    def not_in_the_list(mine, wanted, pipeline):
        if mine["slowest"] not in pipeline.transforms:
            return f"your function returned {mine['slowest']}", "one of the functions in `transforms`"

    def strange(mine, wanted, pipeline):
        if mine["calls with another image"]:
            return (f"transforms were called {mine['calls with another image']} times with another image than in use",
                    "each gets what the one before it returned, and the first one gets `image`")

    def quick(mine, wanted, pipeline):
        if mine["slowest"] != wanted["slowest"]:
            return (f"you found one that is quick. Transforms called more than once: {mine['called again']}",
                    "the function that takes most of the time, by itself and not by its name: all have the same")

    rules = (
        each(not_in_the_list, the_function),
        each(quick, lambda pipeline: pipeline.look),
        each(strange, handed_on),
        nothing("changed", left_alone, "both are as they were: the training goes on with them"),
    )

    # ------------------------------------------------------------------------------------ what people write

    repeated = "how often do you repeat, and does each sample begin with `image` again?"

    mistakes = (
        mistake(which_clock,
                before="began = time.process_time()", after="seconds[number] += time.process_time() - began"),
        mistake(which_clock, slowest="return transforms[seconds.index(min(seconds))]"),
        mistake(which_clock, slowest="return transforms[-1]"),
        mistake(first_call, first="if True:"),
        mistake(first_call, samples="for sample in range(1):", first="if True:"),
        mistake(handed_on, call="transform(image)"),
        mistake(handed_on, begin="passed = image * 2"),
        mistake(left_alone,
                slowest="transforms.sort(key=dict(zip(transforms, seconds)).get)\n"
                        "return transforms[-1]"),
        mistake(the_function, slowest="return seconds.index(max(seconds))"),
        stop("TooLong", repeated, samples="for sample in range(500):"),
        stop("TooLong", repeated, begin="passed = passed if sample else image"),
    )


slowest_transform = SlowestTransform()
