"""Exercises that are checked in real ranks, a module per lesson; questions to bet on before a run; progress.

    from helpers.exercises import bet, predict, progress
    from lessons.start_here import exercises as ex
    ex.my_share                    # the task
    ex.my_share.check(my_share)    # not attempted, not yet, or correct; also .hint() and .solution()

Importing this package is cheap: no torch, and no process before the first check. `tables` shows an exercise.
"""

from helpers.exercises.catalogue import progress
from helpers.exercises.quiz import bet, predict

__all__ = ["bet", "predict", "progress"]
