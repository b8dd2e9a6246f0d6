"""The scripts of the suite: their directives, and how one is laid out in a fresh folder.

A script is one file of at most 25 lines, which shows one behaviour; one whose name begins with `program` is a
whole training in the shape of those that people run, of at most 60. It begins with a docstring that says what a
user sees. Then come directives:

    # nprocs: 3              ranks, 2 without it
    # args: --lr 0.1         the command line
    # as: -m package.tool    how the script is started, `script.py` without it
    # slow                   its children import torch, which takes seconds: tested with `-m long` alone
    # needs: cc              a program without which it cannot run: then its test is skipped
    # differs: key           launch cannot be like torchrun here; docs/launch.md has the key in its table

The files in `scripts/<its name>/`, where there are any, are put beside the script. Of one in C, such as meter.c,
a library is put there as well: libmeter.so.
"""

import re
import shutil
import subprocess
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
    needs: str | None
    differs: str | None

    @property
    def says(self):
        """Its docstring: what a user sees."""
        return self.source.split('"""')[1]

    @property
    def lacks(self):
        """What it needs, and this machine has not."""
        return self.needs if self.needs and not shutil.which(self.needs) else None


def read(name):
    """The script called `name`."""
    source = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    directive = r"^# (nprocs|args|as|needs|differs|slow)(?:: (.+))?$"
    said = dict(re.findall(directive, source, re.MULTILINE))
    return Script(name, source, int(said.get("nprocs", 2)), said.get("args", "").split(),
                  said.get("as", "script.py"), "slow" in said, said.get("needs"), said.get("differs"))


def lay_out(script, folder):
    """Put the script and its companions into `folder`; return what is to be named on the command line."""
    companions = SCRIPTS / script.name
    if companions.is_dir():
        shutil.copytree(companions, folder, dirs_exist_ok=True)
    for path in folder.glob("*.c"):
        library = path.with_name(f"lib{path.stem}.so")
        subprocess.run([script.needs, "-shared", "-fPIC", "-o", library, path], check=True)
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
