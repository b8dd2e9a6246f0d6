"""A rank's number, times a factor."""

import os

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


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
        rank = int(os.environ["RANK"])      #: rank
        return rank * factor                #: times

    def observe(my_new_lesson, factor):
        return {"what it returned": my_new_lesson(factor)}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("what it returned", "what does `os.environ['RANK']` hold, a number or text?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("that is rank 0's number, in every rank", rank="rank = 0"),
        mistake("times `factor`, too", times="return rank"),
        mistake("the environment holds text", rank='rank = os.environ["RANK"]'),
    )


my_new_lesson = MyNewLesson()
