"""The scripts of the suite: their directives, and how one is laid out in a fresh folder.

A script is one file of at most 25 lines. Its first line is a docstring that says what a user sees. Then come
directives:

    # nprocs: 3              ranks, 2 without it
    # args: --lr 0.1         the command line
    # as: -m package.tool    how the script is started, `script.py` without it
    # slow                   its children import torch, which takes seconds: tested with `-m long` alone
    # differs: key           launch cannot be like torchrun here; docs/launch.md has the key in its table

The files in `scripts/<its name>/`, where there are any, are put beside the script.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


@dataclass(frozen=True)
class Script:
    """A script and its directives."""

    name: str
    source: str
    nprocs: int
    args: list
    started_as: str
    slow: bool
    differs: str | None

    @property
    def says(self):
        """Its docstring: what a user sees."""
        return self.source.split('"""')[1]


def read(name):
    """The script called `name`."""
    source = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    directive = r"^# (nprocs|args|as|differs|slow)(?:: (.+))?$"
    said = dict(re.findall(directive, source, re.MULTILINE))
    return Script(name, source, int(said.get("nprocs", 2)), said.get("args", "").split(),
                  said.get("as", "script.py"), "slow" in said, said.get("differs"))


def lay_out(script, folder):
    """Put the script and its companions into `folder`; return what is to be named on the command line."""
    companions = SCRIPTS / script.name
    if companions.is_dir():
        shutil.copytree(companions, folder, dirs_exist_ok=True)
    how, content = script.started_as, (SCRIPTS / f"{script.name}.py").read_bytes()
    if how.startswith("-m "):
        path = folder / (how[3:].replace(".", "/") + ".py")
        _write(path, content)
        _write(path.with_name("__init__.py"), b"")
        return how[3:]
    _write(folder / how, content)
    return how


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
