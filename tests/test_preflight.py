"""helpers.preflight: what it says of a machine where all is well, and of real faults, staged one by one."""

import multiprocessing.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers import preflight
from helpers.exercises.feedback import not_yet
from helpers.hardware import Hardware, _control_groups
from tests.conftest import ROOT

UNSHARE = ["unshare", "-rmn"]  # a user's own mounts and networks, where the system allows them
MAY = shutil.which("unshare") and not subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
in_namespaces = pytest.mark.skipif(not MAY, reason="this system gives no namespaces to stage it in")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="staged with Linux's own means")


def run(*words, before=(), folder=ROOT, **environment):
    """The exit status of a pre-flight check, and what it printed."""
    command = [*before, sys.executable, *(words or ("-m", "helpers.preflight"))]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | environment)
    return done.returncode, done.stdout.decode(environment.get("PYTHONIOENCODING", "utf-8"))


def says(*checks, **how):
    """What these checks alone print, in a process of their own."""
    lines = "".join(f"preflight._line(preflight.{check})\n" for check in checks)
    return run("-c", f"from helpers import preflight\n{lines}", **how)[1]


def line(check, capsys):
    """(level, what is said, what to do) of a single check, in this process."""
    preflight._line(check)
    level, said = capsys.readouterr().out.split(maxsplit=1)
    said, _, todo = said.partition("\n       -> ")
    return level, said.strip(), todo.strip()


def path_of(folder):
    """A PYTHONPATH that begins with this folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_a_machine_on_which_the_tests_run_is_ready():
    status, said = run()
    assert status == said.count("WRONG  ") == 0, said
    assert "two ranks start and add 1 and 1: 2" in said and "says: correct\nReady (" in said


@in_namespaces
def test_every_fault_of_a_container_has_its_line(tmp_path_factory):
    """The course is read-only, as where many people share it: that is none. The terminal knows few letters."""
    tmp_path = tmp_path_factory.mktemp("short")  # so that there is room for the names of sockets
    metadata = tmp_path / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.1+cu130")
    small = tmp_path / "学习"
    small.mkdir()
    stage = ('mount -t tmpfs -o size=1m t /dev/shm; mount -t tmpfs -o size=9m t "$1"; cd "$0"; mount --rbind . .; '
             'mount -o remount,ro,bind .; cd "$0"; ! touch x 2>&- || exit 99; shift; exec "$@"')
    status, said = run(before=[*UNSHARE, "sh", "-c", stage, str(ROOT), str(small)], HOME="/dev/null",
                       COURSE_PROGRESS="", TMPDIR=str(small), PYTHONIOENCODING="cp1252", PYTHONPATH=path_of(tmp_path))
    for words in ("WRONG  torch 2.10.1+cu130 (needed: 2.11 or newer), ", "\n       -> choose torch and torchvision",
                  "WRONG  /dev/shm: 1 MiB free\n       -> loaders whose workers send large batches",
                  "WRONG  no place to write your progress in /dev/null: Not a directory; only 9 MiB left for "
                  f"temporary files in {tmp_path}/\\u5b66\\u4e60\n       -> name a file that",
                  "WRONG  loopback: OSError: [Errno 101] Network is unreachable\n       -> switch loopback"):
        assert words in said, said
    assert status == 4 and "\n4 to mend first (" in said and "two ranks" not in said, said


@in_namespaces
def test_a_small_shared_memory_is_no_fault():
    stage = 'mount -t tmpfs -o size=16m t /dev/shm; exec "$@"'
    said = says("shared_memory", before=[*UNSHARE, "sh", "-c", stage, "sh"])
    assert said.startswith(" note  /dev/shm: 16 MiB free\n       -> loaders whose workers"), said


@pytest.fixture
def control_group():
    """How a command begins that runs in a control group of its own, inside this process's, with these limits."""
    limits = {"cpu.max": "50000 100000", "cpu.cfs_quota_us": "50000",
              "memory.max": str(3 * 2**29), "memory.limit_in_bytes": str(3 * 2**29)}
    groups = {next(_control_groups(controller)) / f"course-{os.getpid()}" for controller in ("cpu", "memory")}
    limited = 0
    try:
        for group in groups:
            group.mkdir()
            for name in limits.keys() & set(os.listdir(group)):
                (group / name).write_text(limits[name])
                limited += 1
    except OSError as error:
        pytest.skip(f"this system lets nobody make a control group here: {error}")
    if limited < 2:
        pytest.skip("this system's control groups limit no cores or no memory")
    enter = "".join(f"echo $$ > '{group}/cgroup.procs'; " for group in groups)
    yield ["sh", "-c", enter + 'exec "$@"', "sh"]
    for group in groups:
        group.rmdir()


@on_linux
def test_the_limits_of_a_container_count(control_group):
    said = says("cores", "memory", before=control_group)
    assert f" note  cores: {Hardware().cores}, of which this container may use 0.5\n" in said, said
    little = re.search(r" note  memory: 1\.[45] GiB free of the 1\.5 that this container may use, (.*)", said)
    assert little and "scaling (3.2)" in little[1] and "start_here" not in little[1], said
    assert "-> shut down the kernels of lessons that you have left" in said


def test_a_single_core():
    if not shutil.which("taskset"):
        pytest.skip("no taskset")
    assert says("cores", before=["taskset", "-c", str(min(os.sched_getaffinity(0)))]).startswith(" note  cores: 1\n")


def test_a_folder_for_temporary_files_with_too_long_a_name(tmp_path):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    said = says("sockets", TMPDIR=str(long))
    if hasattr(multiprocessing.util, "_SUN_PATH_MAX") or os.name == "nt":
        assert said.startswith("   ok  "), "this Python takes another folder"
    else:
        assert said.startswith("WRONG  sockets: OSError: AF_UNIX path too long\n       -> set TMPDIR to a folder"), said


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that is in use")
def test_a_folder_that_was_deleted(tmp_path):
    code = "import os; os.rmdir(os.getcwd()); from helpers.preflight import preflight; print(preflight())"
    said = run("-c", code, folder=tmp_path, PYTHONPATH=path_of(ROOT))[1]
    assert "WRONG  course: FileNotFoundError" in said and "-> the current folder was deleted: open the notebook" in said
    assert said.endswith("s).\n1\n") and "two ranks" not in said and "VPN" not in said, said


def test_a_kernel_of_another_copy_of_the_course(tmp_path):
    """A kernel looks into the folder of its notebook first, a command into the current one."""
    for package in ("helpers", "notebooks/lessons"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.js*"))
    both = path_of(ROOT / "notebooks") + os.pathsep + str(ROOT)
    notebook = says("course", folder=tmp_path / "notebooks", PYTHONPATH=both)
    command = says("course", folder=tmp_path, PYTHONPATH=both)
    mixed = " note  this Python has the helpers of {}, the lessons of {}, and works in {}\n       -> changes in one"
    assert notebook.startswith(mixed.format(ROOT, tmp_path / "notebooks/lessons", tmp_path / "notebooks")), notebook
    assert command.startswith(mixed.format(tmp_path, ROOT / "notebooks/lessons", tmp_path)), command
    assert says("course", folder=tmp_path, PYTHONPATH=path_of(tmp_path / "notebooks")).startswith("   ok  ")


def test_another_projects_lessons(tmp_path):
    (tmp_path / "lessons.py").touch()
    said = says("course", PYTHONPATH=path_of(tmp_path))
    assert said.startswith(f"WRONG  this Python finds another project's lessons first: {tmp_path}/lessons.py\n"), said


def test_a_file_that_hides_a_module(tmp_path):
    for name in ("torch.py", "queue.py", "train.py"):
        (tmp_path / name).touch()
    said = says("names", folder=tmp_path, PYTHONPATH=path_of(ROOT))
    assert said.startswith(" note  in the current folder lie queue.py, torch.py\n       -> "), said


@pytest.mark.long
@in_namespaces
def test_ranks_that_cannot_meet_are_told_with_what_to_try():
    status, said = run(before=["unshare", "-rn"])
    assert "WRONG  two_ranks: RankError: " in said and "Unable to find address for: lo" in said, said
    assert "-> unset GLOO_SOCKET_IFNAME, switch off a VPN" in said and "exercise" not in said and status == 2


def test_missing_packages_are_named_and_no_advice_replaces_a_torch():
    status, said = run("-S", "-m", "helpers.preflight", PYTHONPATH="")
    assert "WRONG  torch missing (needed: 2.11 or newer), torchvision missing" in said
    assert "-> choose torch and torchvision for this machine at pytorch.org; " in said
    packages = '"anywidget>=0.9" "cloudpickle>=3" "ipywidgets>=7.7" "matplotlib>=3.8" "psutil>=5.9"'
    assert f"{sys.executable} -m pip install {packages}\n" in said
    assert not any(re.search("torch|requirements", command) for command in re.findall("pip install (.*)", said)), said
    assert "WRONG  lessons cannot be imported\n       -> choose the kernel of the course's .venv" in said
    assert "WRONG  memory: ModuleNotFoundError" in said
    assert "\n       -> do what this line says, or install what is missing above; " in said
    assert status == 3


def test_what_is_needed_is_what_pip_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={preflight._dotted(preflight.PYTHONS[0])}"
    needed = {f"{name}>={preflight._dotted(least)}" for name, least in preflight.NEEDED.items()}
    assert needed < set(project["dependencies"])


def test_an_old_python():
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python"))
    for old in (*map(str, pyenv), *filter(None, map(shutil.which, ("python3.9", "python3.10")))):
        done = subprocess.run([old, "-B", "-m", "helpers.preflight"], cwd=ROOT, text=True, stdout=subprocess.PIPE)
        if done.returncode != 127:  # pyenv's answer for a version that is not switched on
            assert done.stdout.startswith("WRONG  Python 3.") and "-> install Python 3.11 to 3.14, and" in done.stdout
            return
    pytest.skip("no Python 3.9 or 3.10 here")


@pytest.mark.parametrize(("usable", "level", "words"), [(0, "note", "No GPU here"), (1, "ok", "One GPU here")])
def test_a_gpu_that_torch_can_use_or_not(usable, level, words, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "hardware", machine := Hardware())
    machine.gpus, machine.usable_gpus = ("Some GPU",), usable
    said = line(preflight.gpus, capsys)
    assert said[0] == level and words in said[1] and bool(said[2]) == (level != "ok")


def test_an_exercise_whose_check_goes_wrong(monkeypatch, capsys):
    monkeypatch.setattr("lessons.start_here.exercises.mean_of_ranks._tried", lambda _: not_yet("no", "yes"))
    assert line(preflight.an_exercise, capsys)[:2] == ("WRONG", "the check of an exercise says: not yet no")
