"""What learners do to lessons: cells in any order, or twice; an exercise alone; half an answer.

Each is done to every lesson. Those that execute lessons take minutes, and run by `pytest -m long`.
"""

import ast
import builtins
import dis
import inspect
import os
import random
import re
import textwrap
import types

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.util import run_sync

from helpers.exercises.catalogue import exercises_of, modules
from helpers.missing_names import names_made
from helpers.notebooks import parsed
from tests.answers import edited
from tests.conftest import LESSONS, eventually, orphaned_memory, running
from tests.exercises.test_all import every_exercise
from tools.execute import comparable, stable

every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)

# (lesson's number, id of a cell): why its output is another one when it is run again.
DIFFERS = {
    ("08", "modules-len-sys-modules-times-second"): "the text asks for it: what was imported is there",
}

# What a new kernel would not know; starting one for each section takes longer than to run it.
FORGET = """
for _name in [name for name in vars() if name[0] != '_' and name not in ('In', 'Out')]:
    del vars()[_name]
"""


class Learner(NotebookClient):
    """Runs a lesson's cells one by one, in an environment of its own; at the end nothing may be left."""

    def __init__(self, lesson, folder):
        self.book, self.folder, self.number = nbformat.read(lesson, as_version=4), folder, lesson.name[:2]
        self.exercises = {exercise.name for exercise in exercises_of(modules()[lesson.stem])}
        self.mark = f"accident-{os.getpid()}-{folder.name}"
        self.shared = set(os.listdir("/dev/shm"))
        here = folder.with_name(f"{folder.name}-here")  # where the kernel runs, and cells may write files
        here.mkdir()
        super().__init__(self.book, timeout=600, kernel_name="python3", allow_errors=True,
                         store_widget_state=False, resources={"metadata": {"path": str(here)}})
        self.code = [cell for cell in self.book.cells if cell.cell_type == "code"]

    def start(self):
        """The kernel, for a `with`."""
        own = {"TMPDIR": str(self.folder), "COURSE_TEST_MARK": self.mark}
        return self.setup_kernel(env={**os.environ, **own})

    def does(self, cell):
        """Execute a cell; return what it raised, as "Name: text", or None where that was to be."""
        self.execute_cell(cell, self.book.cells.index(cell))
        errors = [f"{one.ename}: {one.evalue}" for one in cell.outputs if one.output_type == "error"]
        return errors[0] if errors and not self.may_raise(cell, errors[0]) else None

    def tells(self, code):
        """Have the kernel run what is no cell of the lesson."""
        run_sync(self.kc.execute_interactive)(code, timeout=60)

    def may_raise(self, cell, error):
        return "raises-exception" in cell.metadata.get("tags", ()) and "is not defined" not in error

    def of_an_exercise(self, cell):
        """Whether it shows the task, holds the learner's answer, or checks it."""
        asks = re.search(r"^(ex|practice)\.", cell.source, re.MULTILINE)
        return bool(asks or self.exercises & names_made(cell.source))

    def sections(self):
        """The code cells before the first heading; those below each, by heading, if an exercise is there."""
        before, by_heading = [], {}
        cells = before
        for cell in self.book.cells:
            heading = re.search(r"^## .*", cell.source, re.MULTILINE)
            if cell.cell_type == "code":
                cells.append(cell)
            elif heading:
                cells = by_heading[heading[0]] = []
        return before, {heading: cells for heading, cells in by_heading.items()
                        if any(map(self.of_an_exercise, cells))}

    def files(self):
        """What is in the temporary folder, but for what other libraries leave there.

        Torch's compiler keeps its work for the next time. Python's multiprocessing leaves an empty folder for
        sockets where its process is killed, as a kernel is that has not ended after 2.5 s.
        """
        others = ("torchinductor_", "pymp-")
        return [path for path in self.folder.iterdir() if not path.name.startswith(others)]

    def nothing_is_left(self):
        assert eventually(lambda: not running(self.mark), 60), running(self.mark)
        assert eventually(lambda: not self.files(), 60), self.files()
        assert eventually(lambda: not orphaned_memory(self.shared), 60), orphaned_memory(self.shared)


@pytest.fixture
def learner(lesson, tmp_path):
    learner = Learner(lesson, tmp_path)
    yield learner
    learner.nothing_is_left()


# ------------------------------------------------------------------------------------------ cells of a lesson


@pytest.mark.long
@every_lesson
def test_cells_in_any_order(learner, lesson):
    """What goes wrong then is a name that is not there yet, and the learner is told which cell makes it."""
    order = random.Random(14).sample(learner.code, len(learner.code))
    helped = 0
    with learner.start():
        for cell in order:
            error = learner.does(cell)
            if error:
                name = re.search(r"NameError.*name '(\w+)' is not defined", error)
                assert name, f"{cell.id}: {error}"
                above = learner.code[:learner.code.index(cell)]
                assert any(name[1] in names_made(one.source) for one in above), f"{cell.id}: {error}"
                helped += "run that cell first" in error
    assert helped or not any(".check(" in cell.source for cell in learner.code)


@pytest.mark.long
@every_lesson
def test_every_cell_twice(learner, lesson):
    """The second time it does and says what it did and said the first time."""
    differ = []
    with learner.start():
        for cell in learner.code:
            assert not (error := learner.does(cell)), f"{cell.id}: {error}"
            first = comparable(stable(cell.outputs, 0))
            assert not (error := learner.does(cell)), f"{cell.id}, the second time: {error}"
            again = comparable(stable(cell.outputs, 0))
            if again != first and "nbval-ignore-output" not in cell.metadata.get("tags", ()):
                differ.append(cell.id)
    assert differ == [cell for number, cell in DIFFERS if number == learner.number]


@pytest.mark.long
@every_lesson
def test_an_exercise_alone(learner, lesson):
    """Each section that holds an exercise, after nothing but the cells before the first heading."""
    before, sections = learner.sections()
    with learner.start():
        for heading, cells in sections.items():
            learner.tells(FORGET)
            for cell in [*before, *cells]:
                error = learner.does(cell)
                story = not learner.of_an_exercise(cell) and "run that cell first" in (error or "")
                assert not error or story, f"{heading}, {cell.id}: {error}"


@every_lesson
def test_an_exercise_needs_no_name_from_another_section(lesson, tmp_path):
    """The same without running anything. (The story around an exercise may go on from an earlier section.)"""
    learner = Learner(lesson, tmp_path)
    before, sections = learner.sections()
    for heading, cells in sections.items():
        there = set(dir(builtins))
        for cell in [*before, *cells]:
            there |= names_made(cell.source)
            if learner.of_an_exercise(cell):
                assert not names_used(cell.source) - there, f"{heading}, {cell.id}"


def names_used(source):
    """Global names that a cell reads, its functions included."""
    def used(code):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                yield step.argval
            elif isinstance(step.argval, types.CodeType):
                yield from used(step.argval)

    return set(used(compile("" if source.startswith("%") else source, "<cell>", "exec")))


# --------------------------------------------------------------------------------------------- half an answer


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@every_exercise
@pytest.mark.parametrize("accident", ["none", "dots", "a name", "half", "no end"])
def test_half_an_answer(exercise, accident, monkeypatch):
    """Whatever the check is given, it says in words what is missing; it neither raises nor hangs."""
    # Or a check that waits in vain tries once more, slowly.
    monkeypatch.setattr("helpers.exercises.exercise._busy", lambda: False)
    if accident == "no end":
        monkeypatch.setattr(type(exercise), "timeout", 3)
    feedback = exercise.check(half(exercise, accident))
    assert feedback.status == ("not attempted" if accident == "dots" else "not yet"), feedback
    assert feedback.where_to_look or feedback.expected
    if accident == "a name":
        assert "NameError: " in feedback.observed and "nmae" in feedback.observed, feedback


def half(exercise, accident):
    """The solution, with its body spoilt."""
    source = textwrap.dedent(inspect.getsource(exercise.answer))
    body = source.splitlines()[ast.parse(source).body[0].body[0].lineno - 1:]
    spoilt = {"none": ["    pass"], "dots": ["    return ..."], "a name": ["    return nmae"],
              "no end": ["    while True: pass"], "half": body[:len(body) // 2]}[accident]
    # The half may end within a bracket, or be nothing.
    while not parsed("def answer():\n" + "\n".join(spoilt)).body:
        spoilt = spoilt[:-1] or ["    pass"]
    return edited(exercise, ("\n".join(body), "\n".join(spoilt)))
