"""docs/instructors.md: its plans' minutes are the lessons', its headings exist, the checks say its quotes."""

import ast
import re

import nbformat
import pytest

from helpers.exercises.catalogue import exercises_of, modules
from tests.conftest import LESSONS, ROOT
from tools.execute import minutes

GUIDE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
PARTS = {part[:2]: part for part in re.split(r"^## (?=\d\d · )", GUIDE, flags=re.MULTILINE)[1:]}
every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def cells(path):
    return nbformat.read(path, as_version=4).cells


def test_every_lesson_has_its_part_in_order():
    titles = [cells(path)[0].source.splitlines()[0].strip("# ") for path in LESSONS]
    parts = re.findall(r"^## (\d\d · .+)$", GUIDE, re.MULTILINE)
    assert parts == titles, "docs/instructors.md: a part for each lesson"


def test_minutes_of_the_plans_are_those_of_their_lessons():
    plans = re.findall(r"^\| a day, .*? \| ([\d, ]+) \| (\d+) \|", GUIDE, re.MULTILINE)
    assert len(plans) == 2
    for numbers, told in plans:
        found = sum(minutes(LESSONS[int(number)])[0] for number in numbers.split(", "))
        assert abs(int(told) - found) <= 10, f"{numbers}: {found} minutes"


@every_lesson
def test_what_is_to_be_shown_is_there(path):
    """Headings in italics, of sections and of explorers."""
    text = "\n".join(cell.source for cell in cells(path) if cell.cell_type == "markdown")
    headings = re.findall(r"^##+ (.+)", text, re.MULTILINE)
    shows = re.findall(r"^\*\*Show\b.*", PARTS.get(path.name[:2], ""), re.MULTILINE)
    assert shows
    for name in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", "\n".join(shows)):
        assert any(heading.startswith(name) for heading in headings), (name, headings)


def asserted(lesson):
    """By exercise, what its check says: words of its rows, of its tests, of its lesson's outputs."""
    module = ROOT / "tests" / "exercises" / f"test_{lesson.name[3:].removesuffix('.ipynb')}.py"
    said = {exercise.name: [row.look for row in (*exercise.rules, *exercise.mistakes) if isinstance(row.look, str)]
            for exercise in exercises_of(modules()[lesson.stem])}
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        called = getattr(node, "func", None)
        if getattr(called, "id", "") in ("edits", "wrong", "refused") and node.args:
            fragments = [row.elts[-1] if isinstance(row, ast.Tuple) else row for row in node.args[1:]]
            said.setdefault(ast.unparse(node.args[0]).removeprefix("ex."), []).extend(
                one.value for one in fragments if isinstance(one, ast.Constant))
    for cell in cells(lesson):
        for name in re.findall(r"(\w+)\.check\(", cell.source):
            stored = [output.data["text/plain"] for output in cell.outputs if "data" in output]
            said.setdefault(name, []).extend(stored)
    return said


@every_lesson
def test_checks_say_what_the_guide_quotes(path):
    found = re.findall(r"^\| `\w+`.*", PARTS.get(path.name[:2], ""), re.MULTILINE)
    rows = [row.strip("| ").split(" | ") for row in found]
    said = asserted(path)
    for exercise, mistake, quote in rows:
        assert mistake and any(quote in one for one in said[exercise.strip("`")]), (exercise, quote)


def test_paths_lead_somewhere():
    for path in re.findall(r"(?<!/)\b(?:tools|tests|docs|notebooks)/[\w./]*\w", GUIDE):
        assert (ROOT / path).exists(), path
