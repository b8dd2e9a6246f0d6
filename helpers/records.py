"""What was measured on hardware that a learner may lack: data/records/, one JSON a lesson, the hardware of each named.

    @experiment(gpus=2)                        # in helpers/workers/<lesson>/recorded.py; tools/record.py runs it
    def scaling():
        \"""Images a second on one GPU and on two, ResNet-18: median of five.\"""

    recorded("data_parallel", "scaling")       # in the lesson: the numbers and their machine, or what would be measured
"""

import importlib
import json
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
    """{name: function} of a lesson's marked experiments; its first line of documentation says what it measures."""
    module = importlib.import_module(f"helpers.workers.{lesson}.recorded")
    return {name: value for name, value in vars(module).items() if hasattr(value, "gpus")}


@dataclass(frozen=True)
class Record:
    """One experiment's result, and where and when it was measured; `result` is None where nobody has recorded it."""

    what: str
    gpus: int
    result: object = None
    where: str = ""

    def __repr__(self):
        if self.result is None:
            plural = "s" * (self.gpus > 1)
            return f"Would be measured on a machine with {self.gpus} GPU{plural}, by tools/record.py: {self.what}"
        return "\n".join([self.what, f"recorded: {self.where}", *_lines(self.result)])


def _lines(result, indent="  "):
    """A result as lines of text: one for each name of a dict, and for each of a dict in it."""
    for name, value in result.items() if isinstance(result, dict) else [("result", result)]:
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            values = value if isinstance(value, list) else [value]
            yield f"{indent}{name}: " + ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)


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
    """What data/records/ holds of a lesson: each result with the machine it is from, and what was not run last time.

    {"results": {name: {"result", "seconds", "gpus", "driver", "cuda", "torch", "python", "date"}},
     "skipped": {name: why}}
    """
    try:
        return json.loads((RECORDS / f"{lesson}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"results": {}, "skipped": {}}
