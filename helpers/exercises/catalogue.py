"""All exercises there are, by lesson, and which of them the learner has solved."""

import importlib
import pkgutil
from collections import defaultdict
from dataclasses import dataclass

from helpers.exercises.engine import Exercise
from helpers.exercises.journal import best_status


def modules():
    """The modules that hold exercises, in the order of their lessons."""
    import helpers.exercises

    found = [importlib.import_module(f"helpers.exercises.{one.name}")
             for one in pkgutil.iter_modules(helpers.exercises.__path__)]
    return sorted((module for module in found if hasattr(module, "LESSON")), key=lambda module: module.LESSON)


def exercises_of(module):
    """The exercises of a lesson's module, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def progress():
    """How many exercises of each lesson are solved; a notebook shows it as a table."""
    best, solved = best_status(), defaultdict(list)
    for module in modules():
        solved[module.LESSON] += [best.get(exercise.name) == "correct" for exercise in exercises_of(module)]
    return Progress({lesson: tuple(done) for lesson, done in solved.items()})


@dataclass(frozen=True, repr=False)
class Progress:
    """By lesson: which exercises are solved."""

    lessons: dict
    """{lesson: (solved or not, by exercise)}"""

    def _rows(self):
        for lesson, solved in self.lessons.items():
            yield lesson, "".join("●" if done else "○" for done in solved), f"{sum(solved)} of {len(solved)} solved"

    def __repr__(self):
        width = max(map(len, self.lessons), default=0)
        return "\n".join(f"{lesson:{width}}  {words}  {dots}" for lesson, dots, words in self._rows())

    def _repr_html_(self):
        left = 'style="text-align: left"'
        rows = "".join(f'<tr><td {left}><a href="{lesson}.ipynb">{lesson}</a></td><td {left}>{words}</td>'
                       f"<td {left}>{dots}</td></tr>" for lesson, dots, words in self._rows())
        heads = "".join(f"<th {left}>{head}</th>" for head in ("lesson", "exercises", "solved"))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
