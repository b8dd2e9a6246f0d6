"""Is this machine ready? Each line says that something is fine, or what is wrong and what to do.

A check is a function that returns (level, what it sees, what to do), of which the last is shown where all is not OK.

    .venv/bin/python -m helpers.preflight     its exit status is how many lines are wrong
    preflight()                               in a notebook, whose kernel may be another Python

It takes some seconds and changes nothing. It needs no torch to say that there is none.
"""

import importlib.metadata
import multiprocessing.connection
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from helpers.exercises import journal
from helpers.hardware import hardware
from helpers.places import COURSE, LESSONS, lessons_that_are_found

OK, NOTE, WRONG = "ok", "note", "WRONG"
PYTHONS = (3, 11), (3, 14)
#: The oldest versions that the lessons work with: pyproject.toml names those that are not torch's own.
TORCH = {"torch": (2, 11), "torchvision": (0, 26)}
NEEDED = {"anywidget": (0, 9), "cloudpickle": (3,), "ipywidgets": (7, 7), "matplotlib": (3, 8), "psutil": (5, 9)}
#: The most that all processes of a lesson hold together, in GiB, as tools/execute.py measures it.
LESSONS_GIB = {
    "start_here": 1.3, "processes": 1.6, "parallel_sgd": 1.7, "data_loading": 2.0, "data_parallel": 1.3,
    "distributed_data_parallel": 1.6, "ddp_in_practice": 1.8, "mixed_precision": 1.3, "profiling": 1.5,
    "sharding": 1.4, "model_parallel": 1.6, "context_and_experts": 1.1, "many_machines": 2.9, "scaling": 3.2,
    "speed_ladder": 1.2,
}
LESSONS_WRITE_MIB = 512  # what a lesson may write, with its checkpoints and traces
#: /dev/shm of containers is 64 MiB if nobody asks for more. Lessons 01 to 03 pass with 16.
SHM_MIB, LEAST_SHM_MIB = 200, 15
REPORT = "report it, with all of these lines, as CONTRIBUTING.md says"


def python():
    oldest, newest = map(_dotted, PYTHONS)
    seen = f"Python {platform.python_version()}"
    advice = f"install Python {oldest} to {newest}, and make .venv anew"
    if sys.version_info < PYTHONS[0]:
        return WRONG, seen, f"{advice} with it, or choose a kernel that has one of these"
    if sys.version_info[:2] > PYTHONS[1]:
        return NOTE, seen, f"the course was tried with {oldest} to {newest}. If it fails here, {advice}"
    return OK, seen, ""


def packages():
    seen, lacking = _versions({**TORCH, **NEEDED})
    advice = []
    if lacking.keys() & TORCH:  # pip would choose one for another GPU than this machine's
        advice.append("choose torch and torchvision for this machine at pytorch.org")
    others = {name: version for name, version in lacking.items() if name not in TORCH}
    if others:
        advice.append(_pip_install(others))
    level = WRONG if lacking else OK
    return level, seen, "; ".join(advice)


def course():
    """A kernel may import another copy of the course than the one whose notebook is open, or another project."""
    here = Path.cwd()
    lessons = lessons_that_are_found()
    if lessons is None:
        install = f"{_quoted(sys.executable)} -m pip install {_quoted(COURSE)}"
        return WRONG, "lessons cannot be imported", f"choose the kernel of the course's .venv, or {install}"
    if not (lessons / "start_here").is_dir():
        advice = "take the folder above it off PYTHONPATH, or rename it, or work in another folder; restart the kernel"
        return WRONG, f"this Python finds another project's lessons first: {lessons}", advice
    copies = [place.resolve() for place in (here, *here.parents) if (place / "helpers" / "preflight.py").exists()]
    works_in_another_copy = copies and COURSE not in copies
    if lessons != LESSONS or works_in_another_copy:
        seen = f"this Python has the helpers of {COURSE}, the lessons of {lessons}, and works in {here}"
        return NOTE, seen, "changes in one copy are not seen in the other: choose the kernel of the copy that you read"
    return OK, "helpers and lessons are of the same copy of the course", ""


def names():
    """Python looks into the current folder first: there, a learner's `torch.py` is torch."""
    modules = {*sys.stdlib_module_names, *TORCH, *NEEDED, "numpy", "helpers", "lessons"}
    files = sorted(file.name for file in Path().glob("*.py") if file.stem in modules)
    if not files:
        return OK, "in the current folder lie no files that hide modules", ""
    advice = "Python imports such a file in place of the module of that name: rename it, and restart the kernel"
    return NOTE, f"in the current folder lie {', '.join(files)}", advice


def cores():
    usable = min(hardware.cpu_limit or hardware.cores, hardware.cores)
    seen = f"cores: {hardware.cores}"
    if usable < hardware.cores:
        seen += f", of which this container may use {usable:g}"
    if usable >= 2:
        return OK, seen, ""
    return NOTE, seen, "every lesson runs, but ranks take turns, so two of them are never faster than one"


def memory():
    free = hardware.memory_available_gib
    seen = f"memory: {free:.1f} GiB free"
    if hardware.memory_limit_gib is not None:
        seen += f" of the {hardware.memory_limit_gib:.1f} that this container may use"
    lacking = [f"{name} ({needed})" for name, needed in LESSONS_GIB.items() if needed > free]
    if not lacking:
        return OK, seen, ""
    seen += f", too little for {', '.join(lacking)}"
    advice = ("shut down the kernels of lessons that you have left, 1 GiB each (JupyterLab lists them at its left "
              "edge, under Running); close other programs, or give the container more")
    level = NOTE if free >= LESSONS_GIB["start_here"] else WRONG
    return level, seen, advice


def shared_memory():
    if not os.path.isdir("/dev/shm"):
        return OK, "no /dev/shm on this system, and none needed", ""
    free = shutil.disk_usage("/dev/shm").free / 2**20
    seen = f"/dev/shm: {free:,.0f} MiB free"
    if free >= SHM_MIB:
        return OK, seen, ""
    advice = ("loaders whose workers send large batches stop or hang: start the container with more "
              "(docker run --shm-size=1g), or take fewer workers")
    level = NOTE if free >= LEAST_SHM_MIB else WRONG
    return level, seen, advice


def folders():
    """Those in which the course writes. Its own may be one that many people read and nobody changes."""
    progress = Path(journal.path()).parent  # it is made when there is something to keep
    progress = next(place for place in (progress, *progress.parents) if place.exists())
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()  # Python goes elsewhere where it cannot write
    faults = [_fault_of("your progress", progress, 1), _fault_of("temporary files", temporary, LESSONS_WRITE_MIB)]
    faults = list(filter(None, faults))
    if faults:
        return WRONG, "; ".join(faults), MEND[folders]
    return OK, f"folders: writable, {_free_mib(temporary) / 1024:.0f} GiB left for temporary files", ""


def _fault_of(name, folder, needed):
    """What keeps this from being written into the folder, in words; None if so many MiB can be."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            room = _free_mib(folder)
    except OSError as error:
        return f"no place to write {name} in {folder}: {error.strerror}"
    return f"only {room:.0f} MiB left for {name} in {folder}" if room < needed else None


def _free_mib(folder):
    return shutil.disk_usage(folder).free / 2**20


def sockets():
    """Queues and loaders hand tensors over at a file in TMPDIR, whose whole name may have some 100 bytes."""
    with multiprocessing.connection.Listener():
        return OK, "queues and loaders can hand tensors over", ""


def loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
        return OK, "processes of this machine reach each other at 127.0.0.1", ""


def gpus():
    if not hardware.gpus:
        return OK, "no GPU: every lesson runs without one", ""
    advice = (f"torch cannot use the {hardware.gpus[0]} of this machine: unset CUDA_VISIBLE_DEVICES if it is set, "
              "or choose another torch at pytorch.org")
    level = OK if hardware.usable_gpus else NOTE
    return level, hardware.sentence, advice


def two_ranks():
    from helpers.launcher import RankError, launch

    began = time.monotonic()
    try:
        sums = launch(_meet, nprocs=2, timeout=40, show=False).results
    except RankError as error:
        advice = "unset GLOO_SOCKET_IFNAME, switch off a VPN or firewall, or set COURSE_START_METHOD=spawn"
        return WRONG, _in_words(two_ranks, error), advice
    seen = f"two ranks start and add 1 and 1: {sums[0]:g} (in {time.monotonic() - began:.1f} s)"
    level = OK if sums == [2, 2] else WRONG
    return level, seen, REPORT


def an_exercise():
    from helpers.exercises import catalogue

    exercise = catalogue.module_of("00_start_here").mean_of_ranks
    feedback = exercise._tried(exercise.answer)  # not `check`, which would note it as the learner's progress
    seen = f"the check of an exercise says: {feedback.status} {feedback.observed}".rstrip()
    level = OK if feedback else WRONG
    return level, seen, REPORT


MACHINE = (python, packages, course, names, cores, memory, shared_memory, folders, sockets, loopback, gpus)
#: What to do where a check itself fails.
MEND = {course: "the current folder was deleted: open the notebook where it is now, or cd there, and start Python anew",
        folders: "name a file that you can write in COURSE_PROGRESS, another folder in TMPDIR, or make room",
        sockets: "set TMPDIR to a folder with a short name on a disk of this machine, such as /tmp; restart JupyterLab",
        loopback: "switch loopback on (ip link set lo up), or ask who runs this machine"}


def preflight():
    """Print a line for each check; return None if all is well, and otherwise how many of them are wrong."""
    began = time.monotonic()
    wrong = [check for check in MACHINE if _line(check) == WRONG]
    for check in (two_ranks, an_exercise):
        ranks_can_start = not {python, packages, course, two_ranks}.intersection(wrong)
        if ranks_can_start and _line(check) == WRONG:
            wrong.append(check)
    verdict = f"{len(wrong)} to mend first" if wrong else "Ready"
    print(f"{verdict} ({time.monotonic() - began:.1f} s).")
    return len(wrong) or None


def _line(check):
    """Print what a check says; return its level."""
    try:
        level, seen, advice = check()
    except Exception as error:
        level = WRONG
        seen = _in_words(check, error)
        advice = MEND.get(check, f"do what this line says, or install what is missing above; otherwise {REPORT}")
    print(f"{level:>5}  {seen}", flush=True)
    if level != OK:
        print(f"       -> {advice}", flush=True)
    return level


def _in_words(check, error):
    first_line, _, _ = str(error).partition("\n")
    return f"{check.__name__}: {type(error).__name__}: {first_line[:200]}"


def _versions(needed):
    """What is installed, in words; and the part of `needed` that is missing or too old."""
    words = []
    lacking = {}
    for name, least in needed.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        first_numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))  # none of "missing"
        if first_numbers < least:
            lacking[name] = least
            version += f" (needed: {_dotted(least)} or newer)"
        words.append(f"{name} {version}")
    return ", ".join(words), lacking


def _pip_install(lacking):
    """The command that installs these packages and replaces no torch: none of them depends on it."""
    packages = " ".join(f'"{name}>={_dotted(least)}"' for name, least in lacking.items())
    return f"{_quoted(sys.executable)} -m pip install {packages}"


def _dotted(version):
    return ".".join(map(str, version))


def _quoted(path):
    return f'"{path}"' if " " in str(path) else path


def _meet():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    number = torch.ones(1)
    dist.all_reduce(number)
    return number.item()


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):  # not a notebook: a terminal may lack letters of a path, say
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(preflight())
