"""helpers.preflight: what it says of a machine where all is well, and of real faults, staged one by one."""

import os
import shutil
import subprocess
import sys

import pytest

from helpers import preflight
from helpers.exercises.engine import not_yet
from helpers.hardware import GPU, Hardware
from tests.conftest import ROOT

UNSHARE = ["unshare", "-rmn"]  # a user's own mounts and networks, where the system allows them
MAY = shutil.which("unshare") and not subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
in_namespaces = pytest.mark.skipif(not MAY, reason="this system gives no namespaces to stage it in")


def run(*words, before=(), **environment):
    """The exit status of a pre-flight check, and what it printed."""
    command = [*before, sys.executable, *words, "-m", "helpers.preflight"]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | environment)
    return done.returncode, done.stdout


def line(check, capsys):
    """(level, what is said, what to do) of a single check, in this process."""
    preflight._line(check)
    level, said = capsys.readouterr().out.split(maxsplit=1)
    said, _, todo = said.partition("\n       → ")
    return level, said.strip(), todo.strip()


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(preflight, "hardware", fresh := Hardware())
    return fresh


def test_a_machine_on_which_the_tests_run_is_ready():
    status, said = run()
    assert status == said.count("WRONG  ") == 0, said
    assert "two ranks start and add 1 and 1: 2" in said and "says: correct\nReady (" in said


@in_namespaces
def test_every_fault_of_a_container_has_its_line(tmp_path):
    metadata = tmp_path / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.1+cu130")
    (tmp_path / "small").mkdir()
    stage = ("mount -t tmpfs -o size=1m t /dev/shm; mount -t tmpfs -o size=9m t small; "
             'cd "$0"; mount --bind notebooks notebooks; mount -o remount,ro,bind notebooks; exec "$@"')
    status, said = run(before=[*UNSHARE, "sh", "-c", f'cd "{tmp_path}"; {stage}', str(ROOT)],
                       HOME="/dev/null", COURSE_PROGRESS="", TMPDIR=str(tmp_path / "small"),
                       PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for words in ("WRONG  torch 2.10.1+cu130 (needed: 2.11 or newer), ", "-m pip install -r requirements.txt",
                  "WRONG  /dev/shm: 1 MiB free\n       → start the container with more (docker run",
                  "WRONG  no place to write your progress: Not a directory; no place to write the notebooks: "
                  "Read-only file system; only 0.0 GiB left for temporary files\n       → name a file that",
                  "WRONG  loopback: OSError: [Errno 101] Network is unreachable\n       → switch loopback"):
        assert words in said, said
    assert status == 4 and "\n4 to mend first (" in said and "two ranks" not in said, said


@pytest.mark.long
@in_namespaces
def test_ranks_that_cannot_meet_are_told_with_what_to_try():
    status, said = run(before=["unshare", "-rn"])
    assert "WRONG  two_ranks: RankError: " in said and "Unable to find address for: lo" in said, said
    assert "→ unset GLOO_SOCKET_IFNAME, switch off a VPN" in said and "exercise" not in said and status == 2


def test_missing_packages_are_named():
    status, said = run("-S", PYTHONPATH="")
    assert "WRONG  torch missing (needed: 2.11 or newer), torchvision missing" in said
    assert " note  jupyterlab missing" in said and "→ questions and pictures may stand still" in said
    assert "WRONG  memory: ModuleNotFoundError" in said
    assert "\n       → install what is missing above; " in said
    assert status == 2


def test_an_old_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    level, _, todo = line(preflight.python, capsys)
    assert level == "WRONG" and "install Python 3.10 or newer" in todo


SOME_GPU = GPU(0, "Some GPU", 8.0, (8, 0))


@pytest.mark.parametrize(("check", "has", "level", "says"), [
    ("cores", {"cores": 16, "cpu_limit": 1.5}, "note", "cores: 16, of which this container may use 1.5"),
    ("memory", {"memory_limit_gib": 1.0}, "WRONG", "this container may use 1.0 GiB"),
    ("gpus", {"gpus": (SOME_GPU,), "usable_gpus": 0}, "note", "No GPU here"),
    ("gpus", {"gpus": (SOME_GPU,), "usable_gpus": 1}, "ok", "One GPU here"),
])
def test_what_this_machine_cannot_be_made_to_lack(check, has, level, says, machine, capsys):
    vars(machine).update(has)
    said = line(getattr(preflight, check), capsys)
    assert said[0] == level and says in said[1] and bool(said[2]) == (level != "ok")


def test_an_exercise_whose_check_goes_wrong(monkeypatch, capsys):
    monkeypatch.setattr("lessons.start_here.exercises.mean_of_ranks._tried", lambda _: not_yet("no", "yes"))
    assert line(preflight.an_exercise, capsys)[:2] == ("WRONG", "the check of an exercise says: not yet no")
