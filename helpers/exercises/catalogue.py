"""All exercises and questions there are, by lesson; which of them the learner has solved, and predicted."""

import importlib
import re
from dataclasses import dataclass

from helpers import notebooks
from helpers.exercises import quiz
from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import as_html
from helpers.exercises.journal import best_status, first_answers

#: How many wrong first answers are shown, the last ones. (Nobody was asked how sure they were.)
SURPRISES = 3


def modules():
    """The modules that hold exercises, by their lessons: {"00_start_here": module, …}."""
    return {path.stem: module_of(path.stem) for path in notebooks.paths()}


def module_of(lesson):
    """The module that holds the exercises of a lesson, such as "00_start_here"."""
    return importlib.import_module(f"lessons.{lesson[3:]}.exercises")


def exercises_of(module):
    """The exercises of a lesson's module, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def questions():
    """Each lesson's questions, as its notebook asks them now: {"00_start_here": {cell's id: Quiz}, …}."""
    return {lesson: {cell: quiz.asked()[call[1]] for cell, source in cells
                     if (call := re.match(r'predict\("(\w+)"\)', source)) and call[1] in quiz.asked()}
            for lesson, cells in notebooks.code_cells().items()}


def progress():
    """What is solved and how well was predicted, by lesson; a notebook shows it as a table."""
    best, answers, asked = best_status(), first_answers(), questions()
    surprises = [(answers[quiz.key].get("date", ""), lesson, cell, quiz, answers[quiz.key]["first"])
                 for lesson, quizzes in asked.items() for cell, quiz in quizzes.items()
                 if quiz.key in answers and answers[quiz.key]["status"] != "correct"]
    surprises.sort(key=lambda one: one[0], reverse=True)
    return Progress({lesson: tuple(best.get(exercise.name) == "correct" for exercise in exercises_of(module))
                     for lesson, module in modules().items()},
                    {lesson: tuple(answers[quiz.key]["status"] == "correct" if quiz.key in answers else None
                                   for quiz in quizzes.values()) for lesson, quizzes in asked.items()},
                    tuple(one[1:] for one in surprises[:SURPRISES]))


@dataclass(frozen=True, repr=False)
class Progress:
    """By lesson: which exercises are solved, and which first answers held."""

    lessons: dict
    """{lesson: (solved or not, by exercise)}"""
    predictions: dict
    """{lesson: (whether the first answer held, or None if there is none, by question)}"""
    surprises: tuple
    """(lesson, cell's id, `Quiz`, first answer) of predictions that did not hold, the latest first."""

    def _rows(self):
        for lesson, solved in self.lessons.items():
            held = self.predictions.get(lesson, ())
            answered = len(held) - held.count(None)
            to_go = f"{held.count(None)} to predict" if None in held else ""
            predicted = f"predicted {held.count(True)} of {answered}" if answered else ""
            dots = "".join("●" if done else "○" for done in solved)
            words = f"{sum(solved)} of {len(solved)} solved"
            yield lesson, dots, words, ", ".join(filter(None, (predicted, to_go)))

    def _said(self):
        held = [one for lesson in self.predictions.values() for one in lesson if one is not None]
        if not held:
            return "You have predicted nothing yet."
        shown = len(self.surprises)
        last = f" Your last {shown} surprises:" if shown > 1 else " Your surprise:" if shown else ""
        return f"You predicted {sum(held)} of {len(held)}.{last}"

    def __repr__(self):
        width = max(map(len, self.lessons), default=0)
        rows = [f"{lesson:{width}}  {words}  {dots:8}  {predicted}"
                for lesson, dots, words, predicted in self._rows()]
        surprises = [f"  {lesson}: {quiz.question} You said: {first}"
                     for lesson, _, quiz, first in self.surprises]
        return "\n".join([*map(str.rstrip, rows), self._said(), *surprises])

    def _repr_html_(self):
        left = 'style="text-align: left"'
        rows = "".join(f'<tr><td {left}><a href="{lesson}.ipynb">{lesson}</a></td><td {left}>{words}</td>'
                       f"<td {left}>{dots}</td><td {left}>{predicted}</td></tr>"
                       for lesson, dots, words, predicted in self._rows())
        columns = "lesson", "exercises", "solved", "predictions"
        heads = "".join(f"<th {left}>{column}</th>" for column in columns)
        surprises = "".join(f'<li>{lesson}: <a href="{lesson}.ipynb#cell-id={cell}">'
                            f"{as_html(quiz.question)}</a> You said: <em>{as_html(first)}</em></li>"
                            for lesson, cell, quiz, first in self.surprises)
        return (f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table><p>{self._said()}</p>"
                + (f"<ul>{surprises}</ul>" if surprises else ""))
