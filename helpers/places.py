"""Where the course lies, in a checkout or where pip has installed it, and where a learner's downloads go."""

import importlib.util
import os
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]  #: the folder that holds `helpers`
IS_CHECKOUT = (COURSE / "notebooks" / "lessons").is_dir()

# LESSONS has a folder for each lesson. In a wheel it is a package of its own, and all else lies in it or in `helpers`.
if IS_CHECKOUT:
    NOTEBOOKS = COURSE / "notebooks"
    LESSONS = NOTEBOOKS / "lessons"
    SHIPPED = COURSE / "data"
else:
    LESSONS = COURSE / "lessons"
    NOTEBOOKS = LESSONS / "notebooks"
    SHIPPED = COURSE / "helpers" / "shipped"
RECORDS = SHIPPED / "records"

#: On every system where torch.hub has its own.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "parallel-pytorch-course")


def lessons_that_are_found():
    """The folder, or the file, that `import lessons` finds: the course's, or what comes before it; or None."""
    spec = importlib.util.find_spec("lessons")
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [spec.origin])  # no folder: it is a file, lessons.py
    return Path(places[0]).resolve()
