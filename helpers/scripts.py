"""The scripts of the lessons: where `launch` finds them by their names, and how to get one to change."""

import ast
import difflib
import shutil
from pathlib import Path

from helpers.places import LESSONS


def copy_script(name):
    """Copy a lesson's script, such as "hello.py", or another of its files, into the current folder, to be changed.

    There, `launch` finds it first: that is the notebook's folder, unless you have gone elsewhere. The modules beside
    it that it imports come along. A file that is there already stays as it is.

    Returns: the path of the copy. Raises FileNotFoundError: no lesson has a file of that name.
    """
    scripts = [place for place in places_of(name) if place.is_file()]
    if not scripts:
        raise FileNotFoundError(f"no lesson has a script {name!r}{advice_on(name)}")
    script = scripts[0]
    for path in (script, *_modules_beside(script)):
        if not Path(path.name).exists():
            shutil.copyfile(path, path.name)
    return Path(script.name).resolve()


def places_of(name):
    """Where a lesson may have a script of this name: its own folder may stand before it."""
    yield LESSONS / name
    for folder in LESSONS.iterdir():
        yield folder / name


def advice_on(name):
    """What else the lessons have that is called almost so, in words; or nothing."""
    close = difflib.get_close_matches(Path(name).name, [script.name for script in LESSONS.glob("*/*.py")], n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def _modules_beside(script):
    """The modules in the script's own folder that it imports, and those that they import."""
    modules = []
    to_read = [script] if script.suffix == ".py" else []
    while to_read:
        for name in _imported_names(to_read.pop()):
            path = script.with_name(f"{name}.py")
            if path.is_file() and path not in modules:
                modules.append(path)
                to_read.append(path)
    return modules


def _imported_names(path):
    """The names of the modules that a Python file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module)
    return names
