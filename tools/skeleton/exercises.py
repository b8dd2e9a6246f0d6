"""The exercises of new_lesson: a rank's number, times a factor."""

import os

from helpers.exercises.engine import Exercise, not_yet


class MyNewLesson(Exercise):
    title = "Who am I?"
    task = "Return this rank's number, times `factor`. No process group is formed here."
    hints = ("`launch` and `torchrun` put a rank's number into its environment.",
             "It is in `os.environ['RANK']`, as text.")
    explanation = "The environment holds text: `int` makes a number of it."
    why = "every script that runs in ranks begins with the question which of them it is."
    world_sizes = (2,)
    cases = {"factor 1": 1, "factor 10": 10}

    def answer(factor):
        return int(os.environ["RANK"]) * factor

    def probe(my_new_lesson, factor):
        number = my_new_lesson(factor)
        return number if type(number) is int else f"a {type(number).__name__}"

    def judge(self, seen, factor):
        for rank, number in enumerate(seen):
            if number != rank * factor:
                return not_yet(f"rank {rank} returned {number}", f"the number {rank * factor}",
                               "what does `os.environ['RANK']` hold, a number or text?")
        return None


my_new_lesson = MyNewLesson()
