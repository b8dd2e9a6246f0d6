"""What a lesson's first cell asks for: that the course, its torch and this notebook go together."""

import importlib.metadata
import tomllib

from packaging.version import Version

from helpers.places import COURSE, IS_CHECKOUT, LESSONS, lessons_that_are_found

OLDEST_TORCH = (2, 11)


def made_for(version):
    """Say what keeps a notebook that was made for this version of the course from working here.

    Raises:
        ImportError: `import lessons` finds another project's.
        RuntimeError: This kernel has no torch, or one that is too old.
    """
    lessons = lessons_that_are_found()
    if lessons is None or not (lessons / "start_here").is_dir():
        raise ImportError(f"`import lessons` finds {lessons or 'nothing'}, and not the course's {LESSONS}: rename it, "
                          "or take its folder from PYTHONPATH; then restart the kernel.")
    _refuse_torch()
    if lessons != LESSONS:
        print(f"The lessons here are those of {lessons}, and this kernel has the helpers of {COURSE}: changes in one "
              "copy of the course are not seen in the other. Choose the kernel of the copy that you read.")
    if Version(version) > Version(course_version()):
        print(f"This notebook is for version {version} of the course, and {COURSE} holds {course_version()}: install "
              "the newer one and restart the kernel, or take the notebook that came with yours.")


def course_version():
    """The version of the course that this kernel has."""
    if IS_CHECKOUT:  # which may be newer than what pip has noted
        return tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return importlib.metadata.version("parallel-pytorch-course")


def _refuse_torch():
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError("This kernel has no torch. Install it as pytorch.org says, or choose another kernel."
                           ) from None
    if Version(torch).release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(f"This kernel has torch {torch}, and the course needs {oldest} or newer: update it, or "
                           "choose another kernel.")
