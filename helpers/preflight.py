"""Is this machine ready? Each line says that something is fine, or what is wrong and what to do.

    .venv/bin/python -m helpers.preflight     its exit status is how many lines are wrong
    preflight()                               in a notebook, whose kernel may be another Python

It takes some seconds and changes nothing. It needs no torch to say that there is none.
"""

import importlib.metadata
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
from helpers.hardware import GIB, hardware
from helpers.notebooks import NOTEBOOKS

OK, NOTE, WRONG = "ok", "note", "WRONG"
#: The oldest versions that the lessons work with.
NEEDED = {"torch": (2, 11), "torchvision": (0, 26), "cloudpickle": (3,), "matplotlib": (3, 8), "psutil": (5,)}
FRONT_END = {"jupyterlab": (4,), "ipywidgets": (8,)}
REPORT = "report it, with all of these lines, as CONTRIBUTING.md says"
ROOM_GIB = 0.5  # what a lesson may write, with its checkpoints and traces
#: /dev/shm of containers is 64 MiB if nobody asks for more; the workers of a DataLoader need more.
SHM_GIB = 0.2


def python():
    level = OK if sys.version_info >= (3, 10) else WRONG
    todo = "install Python 3.10 or newer, and make .venv anew with it"
    return level, f"Python {platform.python_version()}", todo


def packages():
    said, lacking = _versions(NEEDED)
    return WRONG if lacking else OK, said, f"{sys.executable} -m pip install -r requirements.txt"


def front_end():
    said, lacking = _versions(FRONT_END)
    todo = "questions and pictures may stand still here: pip install -r requirements.txt"
    return NOTE if lacking else OK, said, todo


def cores():
    usable = min(hardware.cpu_limit or hardware.cores, hardware.cores)
    limited = f", of which this container may use {usable:g}" if usable < hardware.cores else ""
    todo = "every lesson runs, but ranks take turns, so two of them are never faster than one"
    return OK if usable >= 2 else NOTE, f"cores: {hardware.cores}{limited}", todo


def memory():
    free, limit = hardware.memory_available_gib, hardware.memory_limit_gib
    limited = "" if limit is None else f", and this container may use {limit:.1f} GiB"
    room = min(free, limit or free)
    level = OK if room >= 3.5 else NOTE if room >= 1.5 else WRONG
    todo = "close other programs, or give more to the container; README says what each lesson needs"
    return level, f"memory: {free:.1f} GiB free{limited}", todo


def shared_memory():
    if not os.path.isdir("/dev/shm"):
        return OK, "no /dev/shm on this system, and none needed", ""
    free = shutil.disk_usage("/dev/shm").free / GIB
    todo = "start the container with more (docker run --shm-size=1g), or DataLoaders with workers fail"
    return OK if free >= SHM_GIB else WRONG, f"/dev/shm: {free * 1024:,.0f} MiB free", todo


def folders():
    wrong, room = [], []
    for name, folder in (("your progress", os.path.dirname(journal.path())), ("the notebooks", NOTEBOOKS),
                         ("temporary files", tempfile.gettempdir())):
        try:
            there = next(place for place in (Path(folder), *Path(folder).parents) if place.exists())
            with tempfile.TemporaryFile(dir=there):
                room.append(shutil.disk_usage(there).free / GIB)
            if room[-1] < ROOM_GIB:
                wrong.append(f"only {room[-1]:.1f} GiB left for {name}")
        except OSError as error:
            wrong.append(f"no place to write {name}: {error.strerror}")
    todo = "name a file that you can write in COURSE_PROGRESS, another folder in TMPDIR, or make room"
    return WRONG if wrong else OK, "; ".join(wrong) or f"folders: writable, {min(room):.0f} GiB left", todo


def loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
        return OK, "processes of this machine reach each other at 127.0.0.1", ""


def gpus():
    if not hardware.gpus:
        return OK, "no GPU: every lesson runs without one", ""
    todo = f"this torch cannot use the {hardware.gpus[0].name} of this machine: choose another at pytorch.org"
    return OK if hardware.usable_gpus else NOTE, hardware.sentence, todo


def two_ranks():
    from helpers.launcher import launch

    began = time.monotonic()
    sums = launch(_meet, nprocs=2, timeout=40, show=False).results
    said = f"two ranks start and add 1 and 1: {sums[0]:g} (in {time.monotonic() - began:.1f} s)"
    return OK if sums == [2, 2] else WRONG, said, REPORT


def an_exercise():
    from lessons.start_here.exercises import mean_of_ranks

    feedback = mean_of_ranks._tried(mean_of_ranks.answer)
    said = f"the check of an exercise says: {feedback.status} {feedback.observed}".rstrip()
    return OK if feedback else WRONG, said, REPORT


MACHINE = (python, packages, front_end, cores, memory, shared_memory, folders, loopback, gpus)
#: What to do where a check itself fails.
MEND = {loopback: "switch loopback on (ip link set lo up), or ask who runs this machine",
        two_ranks: "unset GLOO_SOCKET_IFNAME, switch off a VPN or firewall, or set COURSE_START_METHOD=spawn"}


def preflight():
    """Print a line for each check; return None if all is well, and otherwise how many of them are wrong."""
    began, wrong = time.monotonic(), []
    for check in (*MACHINE, two_ranks, an_exercise):
        hopeless = check in (two_ranks, an_exercise) and {python, packages, two_ranks}.intersection(wrong)
        if not hopeless and _line(check) == WRONG:
            wrong.append(check)
    verdict = f"{len(wrong)} to mend first" if wrong else "Ready"
    print(f"{verdict} ({time.monotonic() - began:.1f} s).")
    return len(wrong) or None


def _line(check):
    try:
        level, said, todo = check()
    except Exception as error:
        words = next(iter(str(error).splitlines()), "")
        level, said = WRONG, f"{check.__name__}: {type(error).__name__}: {words[:200]}"
        todo = MEND.get(check, f"install what is missing above; if nothing is, {REPORT}")
    print(f"{level:>5}  {said}" + f"\n       → {todo}" * (level != OK), flush=True)
    return level


def _versions(needed):
    """What is installed, in words; and whether one of them is missing or too old."""
    said, lacking = [], False
    for name, least in needed.items():
        try:
            has = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            has = "missing"
        old = tuple(map(int, re.findall(r"\d+", has)[:2])) < least
        lacking |= old
        said.append(f"{name} {has}" + f" (needed: {'.'.join(map(str, least))} or newer)" * old)
    return ", ".join(said), lacking


def _meet():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


if __name__ == "__main__":
    sys.exit(preflight())
