"""For the tests and for the lessons, which `pytest notebooks` runs without the rest."""

import gc
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

# Three tests at a time share two cores: a thread of OpenMP that has nothing to do shall sleep, not spin. (libgomp reads
# it when torch is imported, in whatever is started from here. It saves the whole run 75 s of CPU time.)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Some hundred processes import the course: where Python is told to keep no bytecode, each compiles it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_kernels = itertools.count()


def pytest_configure():
    """No test, and no notebook that nbval executes, may read or write the progress of the person who runs the tests."""
    os.environ["COURSE_PROGRESS"] = str(Path(tempfile.mkdtemp(prefix="course-tests-"), "progress.json"))
    if os.name == "posix":
        nbval.kernel.KernelManager = _without_ports


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What collection imports, torch and 3,400 tests, stays: nobody need look for garbage in it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _without_ports(**kwargs):
    """A manager that talks to its kernel over Unix sockets.

    TCP ports are chosen before a kernel starts. By the time that it opens them, one may be that of a rank, which ends
    the kernel ("Kernel died before replying to kernel_info"): seen once in some sixty runs of all tests.
    """
    file = Path(os.environ["COURSE_PROGRESS"]).with_name(f"kernel-{next(_kernels)}.json")
    return KernelManager(transport="ipc", connection_file=str(file), **kwargs)


def pytest_unconfigure():
    shutil.rmtree(Path(os.environ["COURSE_PROGRESS"]).parent, ignore_errors=True)
