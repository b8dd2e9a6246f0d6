"""docs/instructors.md: its plans' minutes are the lessons', its headings exist, the checks say its quotes."""

import ast
import re
import unicodedata

import nbformat
import pytest

from helpers.exercises.catalogue import exercises_of, modules, questions
from tests.conftest import LESSONS, ROOT
from tools.execute import minutes, minutes_of

GUIDE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
PARTS = {part[:2]: part for part in re.split(r"^## (?=\d\d · )", GUIDE, flags=re.MULTILINE)[1:]}
every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def cells(path):
    return nbformat.read(path, as_version=4).cells


def test_every_lesson_has_its_part_in_order():
    titles = [cells(path)[0].source.splitlines()[0].strip("# ") for path in LESSONS]
    parts = re.findall(r"^## (\d\d · .+)$", GUIDE, re.MULTILINE)
    assert parts == titles, "docs/instructors.md: a part for each lesson"


def sections(path, names):
    """The cells below a lesson's headings of the second rank that begin with these names."""
    chosen, is_chosen = [], False
    found = set()
    for cell in cells(path):
        heading = re.match(r"## (.+)", cell.source)
        if heading and cell.cell_type == "markdown":
            named = [name for name in names if heading[1].startswith(name)]
            is_chosen = bool(named)
            found.update(named)
        if is_chosen:
            chosen.append(cell)
    assert found == set(names), f"{path.stem} has no section {set(names) - found}"
    return chosen


def planned(taken):
    """Minutes alone for what a plan takes, "00; of 05 *A section* and *Another*", and how many lessons that are."""
    total, lessons = 0, 0
    for part in taken.split(";"):
        names = re.findall(r"\*([^*]+)\*", part)
        for number in re.findall(r"\b\d\d\b", part):
            lessons += 1
            total += (minutes_of(sections(LESSONS[int(number)], names)) if names else minutes(LESSONS[int(number)]))[0]
    return total, lessons


def hours(words):
    """A number of hours such as 7¼."""
    whole, quarters = re.fullmatch(r"(\d+)([¼½¾]?)", words).groups()
    return int(whole) + (unicodedata.numeric(quarters) if quarters else 0)


def in_a_room(alone, lessons):
    """Hours, as the page computes them."""
    return (2 * alone + 10 * lessons) / 60


def test_minutes_and_hours_of_the_plans_are_those_of_their_lessons():
    plans = re.findall(r"^\| [^|]+ \| ([^|]+) \| (\d+) \| ([\d¼½¾]+) \|", GUIDE, re.MULTILINE)
    assert len(plans) == 4
    for taken, told, told_hours in plans:
        alone, lessons = planned(taken)
        assert abs(int(told) - alone) <= 10, f"{taken}: {alone} minutes"
        assert abs(hours(told_hours) - in_a_room(int(told), lessons)) <= 1 / 8, f"{taken}: {told_hours} hours"


def test_the_six_lessons_are_those_of_the_readme_and_fill_two_days():
    row = r"the six lessons \| ([\d, ]+) \|.*first day: ([\d, ]+); second day: ([\d, ]+) "
    (taken, first, second), = re.findall(row, GUIDE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{first}, {second}" == taken and taken.replace(", 08", " and 08") in " ".join(readme.split())
    for day in (first, second):
        assert 4 <= in_a_room(*planned(day)) <= 6.5
    homework = re.findall(r"`(\w+)`", GUIDE.partition("may be its homework:")[2].partition(".")[0])
    for number, exercise in zip(taken.split(", "), homework, strict=True):
        assert exercise in exercises(LESSONS[int(number)])


def test_a_week_of_a_term_and_ninety_minutes():
    (least, most), = re.findall(r"\| ([\d¼½]+) to ([\d¼½]+) a week \|", GUIDE)
    by_lesson = [in_a_room(minutes(path)[0], 1) for path in LESSONS]
    assert abs(hours(least) - min(by_lesson)) <= 0.2 and abs(hours(most) - max(by_lesson)) <= 0.2, by_lesson
    paragraph = GUIDE.partition("For **90 minutes")[2].partition("\n\n")[0]
    assert sum(map(int, re.findall(r"\b(\d+) for", paragraph))) == 90
    for number, exercise in re.findall(r"(\d\d):\s+`(\w+)`", paragraph):
        assert exercise in exercises(LESSONS[int(number)])


def test_the_half_days_exercises_stand_in_its_lessons():
    taken, chosen = re.search(r"half a day \| ([^|]+) \|.*exercises: (.+) \|", GUIDE).groups()
    lessons = [LESSONS[int(number)] for number in re.findall(r"\b\d\d\b", taken)]
    for path, exercise in zip(lessons, re.findall(r"`(\w+)`", chosen), strict=True):
        assert exercise in exercises(path)


def exercises(path):
    return [exercise.name for exercise in exercises_of(modules()[path.stem])]


@every_lesson
def test_questions_to_ask_are_bets_with_their_answers_or_name_the_section_that_answers(path):
    part = PARTS[path.name[:2]]
    asks = part[part.index("**Ask**"):part.index("**Show")].strip().split("\n")[2:]
    bets = {question.key: question for question in questions()[path.stem].values()}
    for ask in asks:
        told = re.fullmatch(r"- \*(.+?)\* They say: (.+?)\. True: (.+) \((`\w+`|\*.+\*)\)", ask)
        assert told, ask
        _, said, true, where = told.groups()
        if where[0] == "*":
            assert sections_named(path, where.strip("*")), where
            continue
        bet = bets[where.strip("`")]
        wrong = [option.lower() for option in bet.options if option != bet.answer]
        assert true.lower().startswith(f"{bet.answer.lower()}."), (ask, bet.answer)
        assert said.lower() in wrong, (said, wrong)


def sections_named(path, name):
    return any(re.search(rf"^##+ {re.escape(name)}", cell.source, re.MULTILINE) for cell in cells(path))


def test_the_explorers_are_shown_in_the_gallery_and_nowhere_on_slides():
    assert "../notebooks/gallery.ipynb" in GUIDE and not re.search(r"\b(slides?|decks?|reveal)\b", GUIDE)


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
