"""What a script does under launch is what it does under torchrun: every script against the record.

`python -m tests.conformance.compare NAME` shows what differs; `python -m tests.conformance.record NAME` asks
torchrun anew.
"""

import re

import pytest
import torch

from tests.conformance import outcome
from tests.conformance.record import LAUNCH, TORCHRUN, recorded
from tests.conformance.script import HERE, NAMES, SCRIPTS, read

EQUAL = [name for name in NAMES if not read(name).differs]
DIFFERENT = [name for name in NAMES if read(name).differs]
PAGE = HERE.parents[1] / "docs" / "launch.md"


@pytest.fixture(autouse=True)
def what_it_needs(request):
    """Skip the test of a script that cannot run here, and say why."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params["name"]
    if name and (missing := read(name).lacks):
        pytest.skip(f"there is no {missing} here")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if read(name).slow else ())
                                  for name in EQUAL])
def test_launch_does_what_torchrun_does(name):
    assert outcome.of(name, "launch") == recorded(TORCHRUN)[name], read(name).says


@pytest.mark.parametrize("name", DIFFERENT)
def test_where_launch_differs_it_does_what_its_page_says(name):
    got = outcome.of(name, "launch")
    assert got == recorded(LAUNCH)[name], read(name).says
    assert got != recorded(TORCHRUN)[name], "launch does what torchrun does now: take its row out of the page"


@pytest.mark.long
@pytest.mark.parametrize("name", EQUAL)
def test_launch_without_a_fork_server_does_what_torchrun_does(name):
    assert outcome.by_spawn([name])[name] == recorded(TORCHRUN)[name], read(name).says


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_torchrun_still_does_what_is_recorded(name):
    assert outcome.of(name, "torchrun") == recorded(TORCHRUN)[name], read(name).says


def test_scripts_are_short_and_recorded():
    lengths = {path.name: len(path.read_text().splitlines()) for path in SCRIPTS.rglob("*.py")}
    assert not {name: length for name, length in lengths.items()
                if length > (60 if name.startswith("program_") else 25)}
    assert sorted(recorded(TORCHRUN)) == NAMES
    assert sorted(recorded(LAUNCH)) == DIFFERENT
    assert all(read(name).source.startswith('"""') for name in NAMES)


def test_the_page_names_every_difference_and_no_other():
    """A row of its table begins with the key, as code. A script or a test beside it has `# differs: key`."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in HERE.rglob("*.py"))
    page = PAGE.read_text().partition("## What a function sees")[0]
    shown = set(re.findall(r"^# differs: ([a-z-]+)$", text, re.M))
    assert shown == set(re.findall(r"^\| `([a-z-]+)`", page, re.M))
    programs = sum(name.startswith("program_") for name in NAMES)
    assert f"{len(NAMES) - programs} small scripts and {programs} whole trainings" in page


@pytest.mark.long
def test_the_record_is_of_this_torch():
    assert f'"torch": "{torch.__version__.partition("+")[0]}"' in TORCHRUN.read_text()
