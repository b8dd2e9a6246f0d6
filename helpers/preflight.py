"""Is this machine ready? Each line says that something is fine, or what is wrong and what to do.

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
NEEDED = {"cloudpickle": (3,), "ipywidgets": (7, 7), "matplotlib": (3, 8), "psutil": (5, 9)}
#: The most that all processes of a lesson hold together, in GiB: README's table.
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
    said, todo = f"Python {platform.python_version()}", f"install Python {oldest} to {newest}, and make .venv anew"
    if sys.version_info < PYTHONS[0]:
        return WRONG, said, f"{todo} with it, or choose a kernel that has one of these"
    if sys.version_info[:2] > PYTHONS[1]:
        return NOTE, said, f"the course was tried with {oldest} to {newest}. If it fails here, {todo}"
    return OK, said, ""


def packages():
    said, lacking = _versions({**TORCH, **NEEDED})
    todo = []
    if lacking.keys() & TORCH:  # pip would choose one for another GPU than this machine's
        todo.append("choose torch and torchvision for this machine at pytorch.org")
    small = {name: version for name, version in lacking.items() if name not in TORCH}
    if small:
        todo.append(_pip_install(small))
    return WRONG if lacking else OK, said, "; ".join(todo)


def course():
    """A kernel may import another copy of the course than the one whose notebook is open, or another project."""
    here, lessons = Path.cwd(), lessons_that_are_found()
    if lessons is None:
        todo = f"choose the kernel of the course's .venv, or {_quoted(sys.executable)} -m pip install {_quoted(COURSE)}"
        return WRONG, "lessons cannot be imported", todo
    if not (lessons / "start_here").is_dir():
        todo = "take the folder above it off PYTHONPATH, or rename it, or work in another folder; restart the kernel"
        return WRONG, f"this Python finds another project's lessons first: {lessons}", todo
    copies = [place.resolve() for place in (here, *here.parents) if (place / "helpers" / "preflight.py").exists()]
    if lessons != LESSONS or (copies and COURSE not in copies):
        said = f"this Python has the helpers of {COURSE}, the lessons of {lessons}, and works in {here}"
        return NOTE, said, "changes in one copy are not seen in the other: choose the kernel of the copy that you read"
    return OK, "helpers and lessons are of the same copy of the course", ""


def names():
    """Python looks into the current folder first: there, a learner's `torch.py` is torch."""
    modules = {*sys.stdlib_module_names, *TORCH, *NEEDED, "numpy", "helpers", "lessons"}
    files = sorted(file.name for file in Path().glob("*.py") if file.stem in modules)
    todo = "Python imports such a file in place of the module of that name: rename it, and restart the kernel"
    return NOTE if files else OK, f"in the current folder lie {', '.join(files) or 'no files that hide modules'}", todo


def cores():
    usable = min(hardware.cpu_limit or hardware.cores, hardware.cores)
    limited = f", of which this container may use {usable:g}" if usable < hardware.cores else ""
    todo = "every lesson runs, but ranks take turns, so two of them are never faster than one"
    return OK if usable >= 2 else NOTE, f"cores: {hardware.cores}{limited}", todo


def memory():
    free, limit = hardware.memory_available_gib, hardware.memory_limit_gib
    said = f"memory: {free:.1f} GiB free"
    if limit is not None:
        said += f" of the {limit:.1f} that this container may use"
    lacking = [f"{name} ({needed})" for name, needed in LESSONS_GIB.items() if needed > free]
    if lacking:
        said += f", too little for {', '.join(lacking)}"
    todo = ("shut down the kernels of lessons that you have left, 1 GiB each (JupyterLab lists them at its left edge, "
            "under Running); close other programs, or give the container more")
    level = OK if not lacking else NOTE if free >= LESSONS_GIB["start_here"] else WRONG
    return level, said, todo


def shared_memory():
    if not os.path.isdir("/dev/shm"):
        return OK, "no /dev/shm on this system, and none needed", ""
    free = shutil.disk_usage("/dev/shm").free / 2**20
    todo = ("loaders whose workers send large batches stop or hang: start the container with more "
            "(docker run --shm-size=1g), or take fewer workers")
    return OK if free >= SHM_MIB else NOTE if free >= LEAST_SHM_MIB else WRONG, f"/dev/shm: {free:,.0f} MiB free", todo


def folders():
    """Those in which the course writes. Its own may be one that many people read and nobody changes."""
    progress = Path(journal.path()).parent  # it is made when there is something to keep
    progress = next(place for place in (progress, *progress.parents) if place.exists())
    temporary = os.environ.get("TMPDIR") or tempfile.gettempdir()  # Python goes elsewhere where it cannot write
    wrong = []
    for name, folder, needed in (("your progress", progress, 1), ("temporary files", temporary, LESSONS_WRITE_MIB)):
        try:
            with tempfile.TemporaryFile(dir=folder):
                room = shutil.disk_usage(folder).free / 2**20
            if room < needed:
                wrong.append(f"only {room:.0f} MiB left for {name} in {folder}")
        except OSError as error:
            wrong.append(f"no place to write {name} in {folder}: {error.strerror}")
    said = "; ".join(wrong) or f"folders: writable, {room / 1024:.0f} GiB left for temporary files"
    return WRONG if wrong else OK, said, MEND[folders]


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
    todo = (f"torch cannot use the {hardware.gpus[0].name} of this machine: unset CUDA_VISIBLE_DEVICES if it is set, "
            "or choose another torch at pytorch.org")
    return OK if hardware.usable_gpus else NOTE, hardware.sentence, todo


def two_ranks():
    from helpers.launcher import RankError, launch

    began = time.monotonic()
    try:
        sums = launch(_meet, nprocs=2, timeout=40, show=False).results
    except RankError as error:
        todo = "unset GLOO_SOCKET_IFNAME, switch off a VPN or firewall, or set COURSE_START_METHOD=spawn"
        return WRONG, _in_words(two_ranks, error), todo
    said = f"two ranks start and add 1 and 1: {sums[0]:g} (in {time.monotonic() - began:.1f} s)"
    return OK if sums == [2, 2] else WRONG, said, REPORT


def an_exercise():
    from lessons.start_here.exercises import mean_of_ranks

    feedback = mean_of_ranks._tried(mean_of_ranks.answer)
    said = f"the check of an exercise says: {feedback.status} {feedback.observed}".rstrip()
    return OK if feedback else WRONG, said, REPORT


MACHINE = (python, packages, course, names, cores, memory, shared_memory, folders, sockets, loopback, gpus)
#: What to do where a check itself fails.
MEND = {course: "the current folder was deleted: open the notebook where it is now, or cd there, and start Python anew",
        folders: "name a file that you can write in COURSE_PROGRESS, another folder in TMPDIR, or make room",
        sockets: "set TMPDIR to a folder with a short name on a disk of this machine, such as /tmp; restart JupyterLab",
        loopback: "switch loopback on (ip link set lo up), or ask who runs this machine"}


def preflight():
    """Print a line for each check; return None if all is well, and otherwise how many of them are wrong."""
    began, wrong = time.monotonic(), []
    for check in (*MACHINE, two_ranks, an_exercise):
        hopeless = check in (two_ranks, an_exercise) and {python, packages, course, two_ranks}.intersection(wrong)
        if not hopeless and _line(check) == WRONG:
            wrong.append(check)
    verdict = f"{len(wrong)} to mend first" if wrong else "Ready"
    print(f"{verdict} ({time.monotonic() - began:.1f} s).")
    return len(wrong) or None


def _line(check):
    try:
        level, said, todo = check()
    except Exception as error:
        level, said = WRONG, _in_words(check, error)
        todo = MEND.get(check, f"do what this line says, or install what is missing above; otherwise {REPORT}")
    print(f"{level:>5}  {said}" + f"\n       -> {todo}" * (level != OK), flush=True)
    return level


def _in_words(check, error):
    words = next(iter(str(error).splitlines()), "")
    return f"{check.__name__}: {type(error).__name__}: {words[:200]}"


def _versions(needed):
    """What is installed, in words; and the part of `needed` that is missing or too old."""
    said, lacking = [], {}
    for name, least in needed.items():
        try:
            has = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            has = "missing"
        if tuple(map(int, re.findall(r"\d+", has)[:2])) < least:
            lacking[name] = least
            has += f" (needed: {_dotted(least)} or newer)"
        said.append(f"{name} {has}")
    return ", ".join(said), lacking


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
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):  # not a notebook: a terminal may lack letters of a path, say
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(preflight())
