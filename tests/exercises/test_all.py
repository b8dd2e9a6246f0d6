"""Every exercise there is: its stub is no attempt, its solution is right, its texts and name are there."""

import importlib
import inspect
import re
import sys

import nbformat
import pytest

from helpers.exercises.catalogue import exercises_of, modules, progress
from helpers.exercises.mistakes import compiled, source_for_learners
from helpers.launcher import launch
from tests.conftest import LESSONS, ROOT

EXERCISES = [exercise for module in modules().values() for exercise in exercises_of(module)]


def called(exercise):
    return f"{exercise.lesson}.{exercise.name}"


pytestmark = pytest.mark.usefixtures("nothing_left")
every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=called)


def kind(exercise):
    """The helpers that run its answer: an exercise of each kind is checked in every test run.

    (test_all_mistakes runs the answers of all, and each lesson the stubs of its own.)
    """
    return tuple(base for base in type(exercise).__mro__ if base.__module__.startswith("helpers."))


KINDS = {kind(one): one for one in EXERCISES[::-1]}.values()
every_kind = pytest.mark.parametrize("exercise", [
    pytest.param(one, id=called(one), marks=[] if one in KINDS else [pytest.mark.long]) for one in EXERCISES])


def stub(exercise):
    source = f"def answer{inspect.signature(exercise.answer)}:\n    raise NotImplementedError"
    return compiled(exercise.answer, source, f"<stub of {exercise.name}>")


@every_kind
def test_stub_is_not_attempted(exercise):
    assert exercise.check(stub(exercise)).status == "not attempted"


@every_kind
def test_solution_is_correct(exercise):
    feedback = exercise.check(exercise.answer)
    assert feedback and feedback.status == "correct", feedback
    assert exercise.why in repr(feedback)


@every_exercise
def test_is_complete(exercise):
    module = sys.modules[type(exercise).__module__]
    assert getattr(module, exercise.name) is exercise, "the instance is named as its class, in small letters"
    for words in "title", "task", "why", "explanation", "hints":
        assert getattr(exercise, words), f"it has no `{words}`"
    assert all(hint.strip() for hint in exercise.hints)
    solution = repr(exercise.solution())
    assert f"```python\ndef {exercise.name}(" in solution and exercise.explanation in solution
    source = source_for_learners(exercise.answer)
    assert source.strip().splitlines()[-1].strip() in solution
    names = re.findall(r"#: (\w+)$", inspect.getsource(exercise.answer), re.MULTILINE)
    assert set(names) == {name for row in exercise.mistakes for name in row.lines}, "a name that no mistake uses"
    assert exercise.task in repr(exercise) and f"def {exercise.name}(" in repr(exercise)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_each_of_its_exercises_in_their_order(path):
    """Also one whose file is there, and whose line in `exercises/__init__.py` is not."""
    cells = nbformat.read(path, as_version=4).cells
    asked = re.findall(r"^\w+\.(\w+)\.check\(", "\n".join(cell.source for cell in cells), re.MULTILINE)
    listed = [exercise.name for exercise in exercises_of(modules()[path.stem])]
    folder = ROOT / "notebooks" / "lessons" / path.stem[3:] / "exercises"
    classes = [file.stem for file in folder.glob("*.py") if "    def answer(" in file.read_text(encoding="utf-8")]
    assert list(dict.fromkeys(asked)) == listed and sorted(classes) == sorted(listed)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_begins_each_answer_with_the_parameters_that_its_check_asks_for(path):
    cells = nbformat.read(path, as_version=4).cells
    written = dict(re.findall(r"^def (\w+)(\(.*\)):", "\n".join(cell.source for cell in cells), re.MULTILINE))
    asked = {one.name: str(inspect.signature(one.answer)) for one in exercises_of(modules()[path.stem])}
    assert {name: written.get(name) for name in asked} == asked


def test_no_rank_imports_matplotlib():
    """Every rank of a check imports the exercise's module; matplotlib costs a third of a second."""
    names = [module.__name__ for module in modules().values()]

    def imported():
        for name in names:
            importlib.import_module(name)
        return "matplotlib" in sys.modules

    assert launch(imported, 1, show=False).results == [False]


def test_names_are_unique():
    """What was solved is looked up by an exercise's name alone, so that a lesson can be split or renamed."""
    names = [exercise.name for exercise in EXERCISES]
    assert {name for name in names if names.count(name) > 1} == set()


def test_progress_shows_every_lesson():
    exercise = EXERCISES[0]
    lesson = next(lesson for lesson, module in modules().items() if exercise in exercises_of(module))
    before = progress().lessons
    assert list(before) == sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert not any(map(any, before.values()))
    exercise.check(exercise.answer)
    shown = progress()
    assert sum(shown.lessons[lesson]) == 1
    assert f"{lesson}" in repr(shown) and "1 of " in shown._repr_html_()
