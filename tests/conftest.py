"""Fixtures and small tools that several test modules use."""

import io
import itertools
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import cloudpickle
import nbformat
import psutil
import pytest

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))

# Semaphores of this process's ranks bear its number: `orphaned_memory` leaves out those of tests that run
# beside. A kernel that a test starts runs this, too.
OWN_SEMAPHORES = f"""import multiprocessing
multiprocessing.current_process()._config['semprefix'] = '/mp-{os.getpid()}'
"""
exec(OWN_SEMAPHORES)
_numbers = itertools.count()


def pytest_collection_finish(session):
    """Test functions go to ranks by value, as a notebook's do: no rank then imports their module."""
    for module in {item.module for item in session.items if hasattr(item, "module")}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(autouse=True)
def progress_of_this_test_alone(monkeypatch):
    """What a test solves must not show in the lessons that this process executes later."""
    folder = Path(os.environ["COURSE_PROGRESS"]).parent
    monkeypatch.setenv("COURSE_PROGRESS", str(folder / f"progress-{next(_numbers)}.json"))


def running(marker):
    """Processes other than this one whose command line or environment holds `marker`.

    They may have ended meanwhile: `info["name"]` is what each was called when it was found.
    """
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            variables = (f"{name}={value}" for name, value in process.environ().items())
            text = " ".join([*process.cmdline(), *variables])
            other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if other and marker in text:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def children():
    """Processes started by this one that are still there, without fork server and resource tracker."""
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
            server = "fork_server.main" in line and process.ppid() == os.getpid()
            zombie = process.status() == psutil.STATUS_ZOMBIE
            if not (server or zombie or "resource_tracker" in line):
                left.append(f"{process.pid} {line[:150]}")
        except psutil.Error:
            continue
    return left


def git(folder, *words):
    """Run git in a folder, as somebody."""
    settings = "-c user.name=a -c user.email=a@b.c -c core.autocrlf=false".split()
    subprocess.run(["git", *settings, *words], cwd=folder, check=True)


def eventually(holds, seconds=30):
    """Wait until `holds()` is true; return whether it became so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())


def cost(explorer, name, values):
    """CPU time of a redraw, in that of a plain plot; the least of some each, whatever other programs do."""
    from matplotlib.figure import Figure  # here, because ranks import a test's module, and so this one

    redraws, plots = [], []
    for value in values:
        began = time.process_time()
        explorer.controls[name].value = value
        redraws.append(time.process_time() - began)
        began = time.process_time()
        figure = Figure()
        figure.subplots().plot([1, 2, 3])
        figure.savefig(io.BytesIO())
        plots.append(time.process_time() - began)
    return min(redraws) / min(plots)


def orphaned_memory(before):
    """Shared memory, not among `before`, that no living process uses. (Tests running beside use some.)"""
    new = {name for name in set(os.listdir("/dev/shm")) - set(before)
           if not name.startswith("sem.") or name.startswith(f"sem.mp-{os.getpid()}-")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace") if new else ""
        except OSError:
            continue  # the process has ended
        new -= {name for name in new if f"/dev/shm/{name}" in text}
    return new


@pytest.fixture
def nothing_left():
    """Fails the test if it leaves a process or a run's folder behind."""
    yield
    assert eventually(lambda: not children()), children()
    folders = Path(tempfile.gettempdir()).glob  # the fork server has one while it imports
    assert eventually(lambda: not any(folders(f"helpers-ranks-{os.getpid()}-*"))), "a run's folder"


@pytest.fixture
def interruptible():
    """Have SIGINT raise KeyboardInterrupt, as in a kernel, even if pytest was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cells_of(lesson):
    """The cells of a lesson, such as 03_data_loading, by their ids, in their order."""
    book = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4)
    return {cell.id: cell for cell in book.cells}


def shapes_of(frame):
    """{name: shape} of an explorer's frame."""
    return {shape["id"]: shape for shape in frame["shapes"]}
