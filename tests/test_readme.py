"""What README.md, CONTRIBUTING.md, the workflow and the citation say of this folder holds."""

import re

import nbformat
import pytest
import yaml

from tests.conftest import LESSONS as NOTEBOOKS
from tests.conftest import ROOT
from tools.execute import minutes, store
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
    code = " ".join(cell.source for cell in book.cells if cell.cell_type == "code")
    _, question, reading, exercises, memory, tier, _ = row
    assert book.cells[0].source.splitlines()[0].endswith(f"· {question}")
    counted = minutes(path)
    assert abs(int(reading) - counted[0]) <= 2, f"README's row: minutes are {counted}"
    assert int(exercises) == counted[1], f"README's row: minutes are {counted}"
    assert re.fullmatch(r"\d\.\d GiB", memory), "tools/execute.py measures it"
    assert set(tier.split(", ")) <= {"real", "scaled down", "recorded"}
    assert ("recorded" in tier) == ("RECORDED" in code or any(
        one.recorded() for one in all_experiments() if one.lesson == path.stem.partition("_")[2]))
    if row is not LESSONS[0]:  # which explains what the words mean
        assert ("scaled down" in tier) == ("scaled down here" in words(book))


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
