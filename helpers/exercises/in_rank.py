"""What runs in each rank during a check."""

import functools
import os
import tempfile
from typing import NamedTuple

from helpers.reporting import RUN_FOLDER


class Lost(NamedTuple):
    """What a rank observes where some rank has waited in vain, and none could go on. The check ends there."""

    lines: list
    """By rank, the learner's line that waited in vain; empty where the function returned."""
    starved: float
    """The share of the limit, for which this rank had no core to run on."""
    sent: int
    """How many messages it had sent, or tried to."""
    asked_for: int
    """How many messages it had asked for."""
    case: object
    """Of the exercise's `cases`, the one in which it waited."""


def beside_the_answer(exercise, function, slowly):
    """Run our answer and the learner's function in each case: [(what theirs left, what ours left), by case]

    Args:
        slowly: By how much limits that the exercise sets itself are multiplied.
    """
    theirs = _attempt(function)
    observed = []
    for words, case in exercise.cases.items():
        wanted = None
        if exercise.runs_our_answer:
            wanted = exercise.run(exercise.answer, case, slowly)
        try:
            mine = exercise.run(theirs, case, slowly)
        except SystemExit as error:  # which launch would take for a rank that has done its work
            raise RuntimeError("the code left with sys.exit()").with_traceback(error.__traceback__) from None
        except Exception as error:
            if words:  # also of an error without a word, such as StopIteration
                error.args = (f"given {words}: {error}".rstrip(": "), *error.args[1:])
            raise
        observed.append((mine, wanted))
        if isinstance(mine, Lost):
            break
    return observed


def one_after_the_other(exercise, functions):
    """Run each function in all cases: [[what it left, or the words of the error that it raised, by case], by function]

    The last one is the learner's. Where it raises and there are other ranks, the launch ends: they may wait for it.
    """
    learners = functions[-1]
    observed = []
    for function in functions:
        by_case = []
        for case in exercise.cases.values():
            try:
                left = exercise.run(function, case, slowly=1)
            except Exception as error:
                if function is learners and exercise.world_sizes != (1,):
                    raise
                left = f"{type(error).__name__}: {error}"
            if isinstance(left, Lost):
                raise RuntimeError("waited in vain: a `stop`, and no `mistake`")
            by_case.append(left)
        observed.append(by_case)
    return observed


def _attempt(function):
    """The learner's function; that it returns `...`, as a stub may, is no attempt."""

    @functools.wraps(function)
    def attempted(*args, **kwargs):
        result = function(*args, **kwargs)
        if result is ...:
            raise NotImplementedError
        return result

    return attempted


def scratch():
    """For `observe`: a temporary folder, as a context; it goes with the run, even if the rank is killed."""
    # A learner's process may still write into it, while it is removed: then it goes with the run's.
    return tempfile.TemporaryDirectory(dir=os.environ[RUN_FOLDER], ignore_cleanup_errors=True)
