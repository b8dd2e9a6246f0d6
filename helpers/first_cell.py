"""What a lesson's first cell asks for: that the course, its torch and this notebook go together."""

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

from packaging.version import Version

from helpers.places import COURSE, IS_CHECKOUT, LESSONS

OLDEST_TORCH = "2.11"


def made_for(version):
    """Say what keeps a notebook that was made for this version of the course from working here.

    Raises:
        ImportError: Another package of the name `lessons` is found before the course's.
        RuntimeError: This kernel has no torch, or one that is too old.
    """
    found = importlib.util.find_spec("lessons")
    if found is None or Path(found.origin or "").resolve() != LESSONS / "__init__.py":
        where = found and (found.origin or list(found.submodule_search_locations))
        raise ImportError(f"`import lessons` finds {where}, and not the course's {LESSONS}: rename it, or take its "
                          "folder from PYTHONPATH; then restart the kernel.")
    _refuse_torch(OLDEST_TORCH)
    beside = Path("..").resolve()
    if (beside / "helpers" / "first_cell.py").exists() and beside != COURSE:
        print(f"This notebook lies in {beside}, and its kernel has the course of {COURSE}: choose the kernel of the "
              "environment that you made here.")
    elif Version(version) > Version(course_version()):
        print(f"This notebook is for version {version} of the course, and {COURSE} holds {course_version()}: install "
              "the newer one, or take the notebook that came with yours.")


def course_version():
    """The version of the course that this kernel has."""
    if IS_CHECKOUT:  # which may be newer than what pip has noted
        return tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return importlib.metadata.version("parallel-pytorch-course")


def _refuse_torch(oldest):
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError("This kernel has no torch. Install it as pytorch.org says, or choose another kernel."
                           ) from None
    if Version(torch) < Version(oldest):
        raise RuntimeError(f"This kernel has torch {torch}, and the course needs {oldest} or newer: update it, or "
                           "choose another kernel.")
