"""What was measured on hardware that a learner may lack: data/records/, one JSON a lesson, with the hardware.

    @experiment(gpus=2)                   # in notebooks/lessons/<lesson>/recorded.py; tools/record.py runs it
    def scaling():
        \"""Images a second on one GPU and on two, ResNet-18: median of five.\"""

    recorded("data_parallel", "scaling")  # in the lesson: numbers, machine, or what would be measured
"""

import hashlib
import importlib
import json
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "data" / "records"


def experiment(gpus):
    """Mark a function without arguments, returning what JSON can hold, as one that needs `gpus` GPUs."""
    def mark(function):
        function.gpus = gpus
        return function
    return mark


def experiments(lesson):
    """{name: function} of a lesson's marked experiments; the docstring's first line says what it measures."""
    module = importlib.import_module(f"lessons.{lesson}.recorded")
    return {name: value for name, value in vars(module).items() if hasattr(value, "gpus")}


@dataclass(frozen=True)
class Record:
    """One experiment's result, and where and when it was measured; `result` is None before that."""

    what: str
    gpus: int
    result: object = None
    where: str = ""

    def __repr__(self):
        if self.result is None:
            plural = "s" * (self.gpus > 1)
            # JupyterLab breaks a long line of text anywhere, in the middle of words.
            return textwrap.fill(f"Would be measured on a machine with {self.gpus} GPU{plural}, "
                                 f"by tools/record.py: {self.what}", 110)
        return "\n".join([self.what, f"recorded: {self.where}", *_lines(self.result)])


def _lines(result, indent="  "):
    """A result as lines of text: one for each name of a dict, and for each of a dict in it."""
    for name, value in result.items() if isinstance(result, dict) else [("result", result)]:
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            values = value if isinstance(value, list) else [value]
            texts = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in values]
            yield f"{indent}{name}: {', '.join(texts)}"


def recorded(lesson, name):
    """The stored result of an experiment. Raises KeyError where the lesson has none of that name."""
    function = experiments(lesson)[name]
    what = function.__doc__.strip().splitlines()[0]
    stored = read(lesson)["results"].get(name)
    if stored is None:
        return Record(what, function.gpus)
    where = "{gpus}, driver {driver}, CUDA {cuda}, torch {torch}, Python {python}, {date}".format(**stored)
    return Record(what, function.gpus, stored["result"], where)


def read(lesson):
    """What data/records/ holds of a lesson: each result with its machine, and what was not run last time.

    {"results": {name: {"result", "seconds", "gpus", "driver", "cuda", "torch", "python", "date"}},
     "skipped": {name: why}}
    Raises DataError where it is damaged.
    """
    path = RECORDS / f"{lesson}.json"
    return stored(path) if path.exists() else {"results": {}, "skipped": {}}


class DataError(RuntimeError):
    """Data is missing or damaged, or cannot be fetched or stored. The message says what to do about it."""


def stored(path):
    """What a record's JSON holds. Raises DataError."""
    return json.loads(shipped(path))


def shipped(path):
    """The bytes of a file in data/, once they agree with the SHA256SUMS beside it. Raises DataError."""
    cure = f"To restore it, run in the course's folder: git checkout -- data/{path.parent.name}"
    try:
        content, sums = path.read_bytes(), _sums(path.parent)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path.name}: {error}. {cure}") from None
    if hashlib.sha256(content).hexdigest() != sums.get(path.name):
        raise DataError(f"{path} is damaged: it differs from its checksum in SHA256SUMS. {cure}")
    return content


def store(path, content):
    """Write a record's JSON, whole or not at all, and its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    sums = (_sums(path.parent) if (path.parent / "SHA256SUMS").exists() else {}) | {
        path.name: hashlib.sha256(text.encode()).hexdigest()}
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    for target, words in ((path, text), (path.parent / "SHA256SUMS", lines)):
        part = target.with_suffix(f".{os.getpid()}")
        part.write_bytes(words.encode())
        part.replace(target)


def _sums(folder):
    """{name: checksum} of SHA256SUMS in a folder. Raises OSError or ValueError if it cannot be read."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return dict(line.split()[::-1] for line in lines)
