"""For the tests and for the lessons, which `pytest notebooks` runs without the rest."""

import os
import shutil
import tempfile
from pathlib import Path

# Four tests at a time share two cores: a thread of OpenMP that has nothing to do shall sleep, not spin. (libgomp reads
# it when torch is imported, in whatever is started from here. It saves the whole run 75 s of CPU time.)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Some hundred processes import the course: where Python is told to keep no bytecode, each compiles it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure():
    """No test, and no notebook that nbval executes, may read or write the progress of the person who runs the tests."""
    os.environ["COURSE_PROGRESS"] = str(Path(tempfile.mkdtemp(prefix="course-tests-"), "progress.json"))


def pytest_unconfigure():
    shutil.rmtree(Path(os.environ["COURSE_PROGRESS"]).parent, ignore_errors=True)
