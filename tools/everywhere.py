"""The first code cell of every lesson, which sets the course up wherever it is opened, and the badges above.

`place` writes both into a lesson. Where the course is not installed (Colab, Kaggle, a bare kernel of VS
Code), the cell finds it beside the notebook, or fetches the notebook's version of it by git. Then it runs, in
the learner's kernel, `set_up` of that course's own copy of this file: it needs the standard library alone.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
ID = "set-up"  # of the cell
TORCH = 2, 11  # the oldest that the course works with

_HEAD = """\
# Sets the course up where it is not installed (Colab, Kaggle …). Elsewhere this cell does nothing.
import importlib.util, pathlib, runpy, subprocess
address, version, script = "{address}", "v{version}", "tools/everywhere.py"
found = importlib.util.find_spec("helpers")
if not (found and found.origin and pathlib.Path(found.origin).with_name("course.mplstyle").exists()):
    beside, home = pathlib.Path("..").resolve(), pathlib.Path.home()
    course = beside if (beside / script).exists() else home / ".cache" / f"parallel-pytorch-course-{{version}}"
    if not (course / script).exists():
"""
_FETCH = """\
        import shutil
        git = ["git", "clone", "--depth=1", f"--branch={version}", address, course]
        try:
            shutil.rmtree(course, ignore_errors=True)  # what an interrupted clone has left
            subprocess.run(git, check=True, capture_output=True, text=True, timeout=300, start_new_session=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeError("The course could not be fetched. Are there git, and a network (on Kaggle: "
                               f"Settings, Internet)? {error} {getattr(error, 'stderr', '')}") from None
"""
_NO_ADDRESS = """\
        raise RuntimeError("The course is not installed in this kernel, and has no public address to fetch it from. "
                           "Install it as its README says under Start, and choose the kernel of its .venv.")
"""
_TAIL = """\
    runpy.run_path(str(course / script))["set_up"]()"""


def project(name):
    """The text that pyproject.toml gives a name, such as version or Repository; empty where it has none."""
    text = (COURSE / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE)
    return found[1] if found else ""


def cell():
    """The source of the first code cell, the same in all lessons."""
    address = project("Repository")
    head = _HEAD.format(address=address, version=project("version"))
    return head + (_FETCH if address else _NO_ADDRESS) + _TAIL


def badges(lesson):
    """Links that open a lesson (its file's name) in Colab, Kaggle and Binder, as HTML; none without GitHub.

    They show no picture from elsewhere: opening a lesson at home needs no network, and tells nobody.
    """
    there = re.fullmatch(r"https://github\.com/([\w-]+/[\w.-]+)", project("Repository"))
    if not there:
        return ""
    name, version = there[1], f"v{project('version')}"
    file = f"{name}/blob/{version}/notebooks/{lesson}"
    services = {"Colab": f"https://colab.research.google.com/github/{file}",
                "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
                "Binder": f"https://mybinder.org/v2/gh/{name}/{version}?labpath=notebooks%2F{lesson}"}
    return " ".join(f'<a href="{link}"><kbd>Open in {where}</kbd></a>' for where, link in services.items())


def without_badges(text):
    """The text of a lesson's first cell without them."""
    return re.sub(r"\n\n<a [^\n]*<kbd>Open in [^\n]*", "", text, count=1)


def place(book, lesson):
    """Put the cell and the badges into a lesson, in place of those it has. Other cells keep their outputs."""
    from nbformat.v4 import new_code_cell

    first = next(number for number, one in enumerate(book.cells) if one.cell_type == "code")
    if book.cells[first].id != ID:
        executed = [one for one in book.cells if one.get("execution_count")]
        for one in executed:
            one.execution_count += 1
        book.cells.insert(first, new_code_cell(id=ID, execution_count=1 if executed else None))
    book.cells[first].source = cell()
    title, _, text = without_badges(book.cells[0].source).partition("\n\n")
    book.cells[0].source = "\n\n".join(filter(None, [title, badges(lesson), text]))


def set_up():
    """Make `helpers` and `lessons` importable in this kernel and the processes it starts; say what was done.

    The torch that is there stays. Of the small packages that the lessons need, pip installs what is missing,
    in the versions that go with what is there.

    Raises:
        RuntimeError: torch is missing or too old, or a package cannot be installed. Nothing has changed then.
    """
    torch = _torch()
    missing = [name for name in _small_packages() if importlib.util.find_spec(name) is None]
    if missing:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input",
               "--disable-pip-version-check", *missing]
        try:
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeError("Some packages are missing, and pip could not install them: "
                               f"{', '.join(missing)}. Install them in a terminal, then run this cell again. "
                               f"{error} {getattr(error, 'stderr', '')}") from None
        importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("helpers", "lessons")]:
        del sys.modules[name]  # somebody else's
    folders = [str(COURSE), str(COURSE / "notebooks")]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
    installed = f" Installed: {', '.join(missing)}." if missing else ""
    print(f"The course, version {project('version')}, is in {COURSE}.")
    print(f"This kernel keeps its torch {torch}.{installed}")


def _torch():
    """The version of the torch that is there."""
    needed = f"The course needs torch {'.'.join(map(str, TORCH))} or newer"
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError(f"{needed}, and this kernel has none: install it as https://pytorch.org says, "
                           "or choose another kernel.") from None
    if tuple(map(int, re.match(r"(\d+)\.(\d+)", torch).groups())) < TORCH:
        raise RuntimeError(f"{needed}, and this kernel has {torch}: update it, or choose another kernel. "
                           "The course leaves it as it is.")
    return torch


def _small_packages():
    """What requirements.txt lists for learners, without torch, and without what shows the notebook."""
    learn = (COURSE / "requirements.txt").read_text(encoding="utf-8").partition("# for the tests")[0]
    listed = re.findall(r"^([\w-]+)==[^;\n]*(?:; sys_platform == \"(\w+)\")?", learn, re.MULTILINE)
    others = "torch", "torchvision", "jupyterlab", "jsonschema"
    return [name for name, system in listed if name not in others and system in ("", sys.platform)]
