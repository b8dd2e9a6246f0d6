"""All exercises there are, by lesson, and which of them the learner has solved."""

import importlib
from dataclasses import dataclass

from helpers.exercises.engine import Exercise
from helpers.exercises.journal import best_status

# A lesson's number is its place.
LESSONS = ("start_here", "processes", "parallel_sgd", "data_loading", "data_parallel", "distributed_data_parallel",
           "ddp_in_practice", "mixed_precision", "profiling", "sharding", "model_parallel", "many_machines", "scaling",
           "speed_ladder")


def modules():
    """The modules that hold exercises, by their lessons: {"00_start_here": module, …}."""
    return {f"{number:02}_{name}": importlib.import_module(f"helpers.exercises.{name}")
            for number, name in enumerate(LESSONS)}


def exercises_of(module):
    """The exercises of a lesson's module, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def progress():
    """How many exercises of each lesson are solved; a notebook shows it as a table."""
    best = best_status()
    return Progress({lesson: tuple(best.get(exercise.name) == "correct" for exercise in exercises_of(module))
                     for lesson, module in modules().items()})


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
