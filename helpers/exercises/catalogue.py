"""All exercises and questions there are, by lesson; which of them the learner has solved, and predicted."""

import importlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from helpers import notebooks
from helpers.exercises import quiz
from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import as_html
from helpers.exercises.journal import best_status, first_answers
from helpers.exercises.quiz import Quiz

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
    by_lesson = {}
    for lesson, cells in notebooks.code_cells().items():
        by_lesson[lesson] = {}
        for cell, source in cells:
            call = re.match(r'predict\("(\w+)"\)', source)
            if call and call[1] in quiz.asked():  # a learner may have changed the key
                by_lesson[lesson][cell] = quiz.asked()[call[1]]
    return by_lesson


def progress():
    """What is solved and how well was predicted, by lesson; a notebook shows it as a table."""
    best = best_status()
    solved = {}
    for lesson, module in modules().items():
        solved[lesson] = tuple(best.get(exercise.name) == "correct" for exercise in exercises_of(module))

    answers = first_answers()
    predictions = {}
    surprises = []
    for lesson, questions_of_lesson in questions().items():
        held = []
        for cell, question in questions_of_lesson.items():
            answer = answers.get(question.key)
            if answer is None:
                held.append(None)
                continue
            held.append(answer["status"] == "correct")
            if answer["status"] != "correct":
                surprises.append((answer.get("date", ""), Surprise(lesson, cell, question, answer["first"])))
        predictions[lesson] = tuple(held)
    surprises.sort(key=lambda dated: dated[0], reverse=True)
    return Progress(solved, predictions, tuple(surprise for _, surprise in surprises[:SURPRISES]))


class Surprise(NamedTuple):
    """A prediction that did not hold."""

    lesson: str
    cell: str
    """The id of the cell that asks."""
    quiz: Quiz
    first: str
    """The option on which the learner had bet."""


@dataclass(frozen=True, repr=False)
class Progress:
    """By lesson: which exercises are solved, and which first answers held."""

    lessons: dict
    """{lesson: (solved or not, by exercise)}"""
    predictions: dict
    """{lesson: (whether the first answer held, or None if there is none, by question)}"""
    surprises: tuple
    """Of `Surprise`, the latest first."""

    def _rows(self):
        """(lesson, a dot an exercise, how many are solved, how many predictions held) of each lesson."""
        for lesson, solved in self.lessons.items():
            held = self.predictions.get(lesson, ())
            answered = len(held) - held.count(None)
            words = []
            if answered:
                words.append(f"predicted {held.count(True)} of {answered}")
            if None in held:
                words.append(f"{held.count(None)} to predict")
            dots = "".join("●" if done else "○" for done in solved)
            yield lesson, dots, f"{sum(solved)} of {len(solved)} solved", ", ".join(words)

    def _in_a_sentence(self):
        """How many predictions of all lessons held; announces the surprises."""
        right = wrong = 0
        for held in self.predictions.values():
            right += held.count(True)
            wrong += held.count(False)
        if not right + wrong:
            return "You have predicted nothing yet."
        sentence = f"You predicted {right} of {right + wrong}."
        if self.surprises:
            sentence += " Your latest surprises:"
        return sentence

    def __repr__(self):
        width = max(map(len, self.lessons), default=0)
        lines = [f"{lesson:{width}}  {solved}  {dots:8}  {predicted}".rstrip()
                 for lesson, dots, solved, predicted in self._rows()]
        lines.append(self._in_a_sentence())
        lines += [f"  {surprise.lesson}: {surprise.quiz.question} You said: {surprise.first}"
                  for surprise in self.surprises]
        return "\n".join(lines)

    def _repr_html_(self):
        left = 'style="text-align: left"'
        heads = ""
        for column in ("lesson", "exercises", "solved", "predictions"):
            heads += f"<th {left}>{column}</th>"
        rows = ""
        for lesson, dots, solved, predicted in self._rows():
            rows += f'<tr><td {left}><a href="{lesson}.ipynb">{lesson}</a></td>'
            for cell in (solved, dots, predicted):
                rows += f"<td {left}>{cell}</td>"
            rows += "</tr>"
        surprises = ""
        for lesson, cell, question, first in self.surprises:
            surprises += (f'<li>{lesson}: <a href="{lesson}.ipynb#cell-id={cell}">'
                          f"{as_html(question.question)}</a> You said: <em>{as_html(first)}</em></li>")
        if surprises:
            surprises = f"<ul>{surprises}</ul>"
        return (f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
                f"<p>{self._in_a_sentence()}</p>{surprises}")
