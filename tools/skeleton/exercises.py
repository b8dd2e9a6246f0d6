"""The exercises of new_lesson: a rank's number, times a factor."""

import os

from helpers.exercises.tables import Table, same


class MyNewLesson(Table):
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

    def observe(my_new_lesson, factor):
        return {"what it returned": my_new_lesson(factor)}

    rules = (
        same("what it returned", "what does `os.environ['RANK']` hold, a number or text?"),
    )
    mistakes = (
        ('int(os.environ["RANK"])', "0", "that is rank 0's number, in every rank"),
        (" * factor", "", "times `factor`, too"),
        ('int(os.environ["RANK"])', 'os.environ["RANK"]', "the environment holds text"),
    )


my_new_lesson = MyNewLesson()
