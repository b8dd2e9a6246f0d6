"""What README.md, CONTRIBUTING.md, the workflow and the citation say of this folder holds."""

import re

import nbformat
import pytest
import yaml

from helpers.preflight import LESSONS_GIB
from lessons.distributed_data_parallel.ring_explorer import ring_explorer
from tests.conftest import LESSONS as NOTEBOOKS
from tests.conftest import ROOT
from tools.execute import minutes, store
from tools.pictures import moving
from tools.record import all_experiments

PAGES = ("README.md", "CONTRIBUTING.md", "docs/installing.md", "docs/promises.md", "docs/troubleshooting.md")
README, CONTRIBUTING, INSTALLING, PROMISES, TROUBLE = (
    (ROOT / name).read_text(encoding="utf-8") for name in PAGES)


def table(heading, text=README):
    """The rows of the table under a heading, as lists of cells; its head is left out."""
    section = re.search(rf"^##? {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    return [re.split(r" \| ", row.strip("| ")) for row in re.findall(r"^\|.*", section, re.MULTILINE)[2:]]


LESSONS = table("The lessons")


def words(book):
    """All that stands in a notebook, its stored texts included, with single spaces."""
    texts = [cell.source for cell in book.cells]
    for output in (output for cell in book.cells for output in cell.get("outputs", ())):
        texts += [output.get("text", ""), output.get("evalue", "")]
        texts.append(output.get("data", {}).get("text/plain", ""))
    return " ".join(" ".join(texts).split())


def test_lessons_have_a_row_each_in_order():
    found = [re.fullmatch(r"\[(\d\d)\]\((notebooks/\1_\w+\.ipynb)\)", row[0])[2] for row in LESSONS]
    assert found == [f"notebooks/{path.name}" for path in NOTEBOOKS]


@pytest.mark.parametrize("row", LESSONS, ids=lambda row: row[0][1:3])
def test_row_of_a_lesson(row):
    path = ROOT / re.search(r"\((.*)\)", row[0])[1]
    book = nbformat.read(path, as_version=4)
    _, question, reading, exercises, _ = row
    assert book.cells[0].source.splitlines()[0].endswith(f"· {question}")
    counted = minutes(path)
    assert abs(int(reading) - counted[0]) <= 2, f"README's row: minutes are {counted}"
    assert int(exercises) == counted[1], f"README's row: minutes are {counted}"


def test_it_is_short_and_its_commands_stand_at_its_beginning():
    lines = README.splitlines()
    words_of_it = [word for word in README.split() if re.search(r"\w", word)]
    assert len(words_of_it) <= 1200
    assert all(len(line) <= 100 or line.startswith(("|", "    ")) for line in lines)
    commands = [number for number, line in enumerate(lines) if line.startswith("    python3 -m venv")]
    assert len(commands) == 2 and commands[-1] < 45
    assert f"{max(LESSONS_GIB.values())} GiB of memory are enough" in README


def test_what_a_gpu_gave_is_recorded():
    """Each number in bold is the one of an experiment of that lesson; card, driver, torch and date are the records'."""
    (heading,) = re.findall(r"^## What a GPU adds\n\n(.*?)\n\n", README, re.DOTALL | re.MULTILINE)
    records = {one: one.recorded() for one in all_experiments() if one.recorded()}
    assert f"({len(records)} experiments" in heading
    for record in records.values():
        for name in "date", "driver":
            assert record[name] in heading
        assert record["torch"].partition("+")[0] in heading and record["gpus"].removeprefix("1 × ") in heading
    for _, answer, lesson in table("What a GPU adds"):
        (path,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
        found = [one.tell(record["result"]) for one, record in records.items() if one.lesson == path.stem[3:]]
        assert any(answer in one for one in found), (answer, found)


def test_the_moving_picture_is_the_explorer_of_today():
    assert (ROOT / "docs" / "ring.svg").read_text(encoding="utf-8") == moving(ring_explorer()), \
        "run tools/pictures.py ring"


def test_symptoms_stand_in_their_lessons():
    rows = table("If something does not work", TROUBLE)
    assert rows
    for symptom, _, lesson in rows:
        text = words(nbformat.read(*(ROOT / "notebooks").glob(f"{lesson}_*.ipynb"), as_version=4))
        for quoted in re.findall("`([^`]+)`", symptom):
            assert quoted in text, f"{quoted!r} is not in lesson {lesson}"


def test_packages_are_those_of_requirements():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    learn, test = "\n".join(lines).split("# for the tests")
    rows = table("What is installed, and why", INSTALLING)
    named = ", ".join(row[0] for row in rows).split(", **only for the tests**, ")
    for part, names in zip((learn, test), named, strict=True):
        assert names.split(", ") == re.findall(r"^([\w-]+)==", part, re.MULTILINE)
    assert lines[-1] == "-e ."


def test_promises_name_tests_that_exist():
    command = re.compile(r"`(?:\.venv/bin/python )?(tests/\S+\.py)?(?: ?-k (\w+))?`")
    for row in table("What the course promises", PROMISES):
        for file, chosen in command.findall(" ".join(row)):
            path = ROOT / (file or "tests/test_promises.py")
            names = re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert path.name == "soak.py" or any(chosen in name for name in names), (file, chosen)


def test_commands_and_files_exist():
    """Each path of ours in a command, or between backticks; each folder of the map."""
    for text in README, CONTRIBUTING, INSTALLING, PROMISES, TROUBLE:
        for path in re.findall(r"(?:tools|tests|helpers|notebooks|data|docs|\.github|\.ci)/[\w./]*\w/?", text):
            assert (ROOT / path).exists(), path
    for tool in (ROOT / "tools").glob("*.py"):
        assert f"tools/{tool.name}" in CONTRIBUTING


def test_the_workflow_runs_what_ci_runs_and_names_files_that_are_there():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert {"run": ".ci/run"} in workflow["jobs"]["linux"]["steps"]
    for name in workflow["env"]["FAST"].split():
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")


def test_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = dict(re.findall(r'^(\w+) = "(.*)"$', text, re.MULTILINE))
    assert citation["version"] == project["version"] and project["license"] in citation["license"]
    assert README.startswith(f"# {citation['title']}\n")
    assert set(citation) >= {"authors", "cff-version", "message"}, "which the format demands"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## ([\d.]+)", changes, re.MULTILINE)[1] == project["version"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_normalising_leaves_a_stored_lesson_as_it_is(path, tmp_path):
    store(nbformat.read(path, as_version=4), tmp_path / path.name)
    same = (tmp_path / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    assert same, "run tools/execute.py --normalise"
