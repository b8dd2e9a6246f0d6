"""How often to save: Young's formula, in steps."""

import math
import numbers
from typing import NamedTuple

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each, same


class Training(NamedTuple):
    """A case: what the learner's function is given."""

    gpus: int
    hours_per_gpu: float
    """Between two failures of one GPU."""
    step_seconds: float
    save_seconds: float

    def __str__(self):
        return (f"{self.gpus:,} GPUs, {self.hours_per_gpu:,} hours, a step of {self.step_seconds:g} s, "
                f"a save of {self.save_seconds:g} s")

    def minutes_lost(self, steps):
        """In each hour of training, if it saves after so many steps; exactly, if failures come at random."""
        mtbf = 3600 * self.hours_per_gpu / self.gpus
        useful = steps * self.step_seconds
        spans = (useful + self.save_seconds) / mtbf
        if spans > 700:  # e^710 is no float
            return math.inf
        return 60 * (mtbf * math.expm1(spans) / useful - 1)


class StepsBetweenSaves(Alone):
    title = "How many steps between two saves?"
    task = ("A training runs on `gpus` GPUs. One GPU alone would fail once in `hours_per_gpu` **hours**. If "
            "any GPU fails, everything since the last save must be done again. A step takes `step_seconds`. "
            "A save takes `save_seconds`, and training waits for it. Return after how many steps to save, a "
            "whole number of at least 1, so that as little time as possible is lost. (You may lose 1 % more "
            "than the best answer.)")
    hints = ("How many seconds pass, on average, between two failures of the whole training?",
             "The lesson's √(2 · save · MTBF) is in seconds. Divide it by the seconds of a step, and round. "
             "Return at least 1.")
    explanation = "This is Young's formula, in steps. Times are in seconds. N GPUs fail N times as often."
    why = ("with ten times the GPUs, you save about three times as often. If a step takes longer than the "
           "best interval, save after each step.")

    cases = {str(training): training for training in (
        Training(16384, 50_000, 5.0, 60.0), Training(256, 50_000, 1.5, 20.0), Training(1024, 12_000, 12.0, 5.0),
        Training(8, 90_000, 0.25, 30.0), Training(200_000, 20_000, 60.0, 1.0), Training(100_000, 20_000, 28.0, 2.0),
        Training(120_000, 20_000, 44.0, 2.0))}

    def answer(gpus, hours_per_gpu, step_seconds, save_seconds):
        mtbf = 3600 * hours_per_gpu / gpus                                              #: mtbf
        return max(1, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))           #: young

    def observe(steps_between_saves, training):
        steps = steps_between_saves(*training)
        if hasattr(steps, "item") and math.prod(steps.shape) == 1:  # a number of numpy's or torch's
            steps = steps.item()
        if isinstance(steps, bool) or not isinstance(steps, numbers.Real) or not steps >= 1 or steps % 1 != 0:
            return {"returned": f"{steps!r:.60}", "steps": 0, "minutes lost": 0.0}
        return {"returned": "a whole number", "steps": int(steps), "minutes lost": training.minutes_lost(int(steps))}

    # ---------------------------------------------------------------------------------------- what must hold

    def too_much_lost(mine, wanted, training):
        young = wanted["steps"]
        at_best = min(training.minutes_lost(steps) for steps in (max(1, young - 1), young, young + 1))
        if mine["minutes lost"] > 1.01 * at_best:
            return (f"every {mine['steps']:,} steps: {mine['minutes lost']:.4g} minutes are lost in each hour",
                    f"{at_best:.4g} minutes, with {young:,} steps")

    rules = (
        same("returned", "return a whole number of at least 1: `max(1, round(…))`"),
        each(too_much_lost, "What does a save cost for each second of training, and what does a failure "
                            "cost? Do you use all four numbers, and round only at the end?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    rounded = "always down, or always up, can be far from the best interval: `round` takes the nearer number"

    mistakes = (
        mistake("this is the time between failures of one GPU; all of them fail that many times as often",
                mtbf="mtbf = 3600 * hours_per_gpu"),
        mistake("more GPUs fail more often, not less often", mtbf="mtbf = 3600 * hours_per_gpu * gpus"),
        mistake("hours and seconds are mixed", mtbf="mtbf = hours_per_gpu / gpus"),
        mistake("this is in seconds; the task asks for steps",
                young="return max(1, round((2 * save_seconds * mtbf) ** 0.5))"),
        mistake("a failure costs half an interval on average, not a whole one",
                young="return max(1, round((save_seconds * mtbf) ** 0.5 / step_seconds))"),
        mistake("the root is missing", young="return max(1, round((2 * save_seconds * mtbf) / step_seconds))"),
        mistake("under the root stands the time of a save, not of a step",
                young="return max(1, round((2 * step_seconds * mtbf) ** 0.5 / step_seconds))"),
        mistake("never after 0 steps: `max(1, …)`",
                young="return max(0, round((2 * save_seconds * mtbf) ** 0.5 / step_seconds))"),
        mistake(rounded, young="return max(1, int((2 * save_seconds * mtbf) ** 0.5 / step_seconds))"),
        mistake(rounded, young="return max(1, math.ceil((2 * save_seconds * mtbf) ** 0.5 / step_seconds))"),
    )


steps_between_saves = StepsBetweenSaves()
