"""Experiments in small sizes, each in a fork: what they find, whether they can be shown, which lines ran.

    python -m tests.rehearsal OUT [name of an experiment or lesson …]      (under stand-in GPUs: tests/stand_in_gpus)

OUT/rows.jsonl gets a line an experiment: {"name", "seconds", "result" and "words", or "error"}. OUT/statements lists
the first lines of all statements of functions in `recorded.py`, as `lesson:number`, and OUT/executed those that ran,
also in processes that experiments have forked.
"""

import ast
import faulthandler
import gc
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import matplotlib
import torch._dynamo  # noqa: F401  (the forks share it: every optimizer imports it)

from helpers.experiments import SMALL, as_stored
from tools.record import all_experiments

matplotlib.use("Agg")
LESSONS = Path(__file__).parents[1] / "notebooks" / "lessons"


class Notes(ast.NodeTransformer):
    """Puts `_executed(line)` before each statement of each function."""

    def __init__(self):
        self.lines = []

    def visit_FunctionDef(self, function):
        for node in ast.walk(function):
            for part in ("body", "orelse", "finalbody"):
                if isinstance(getattr(node, part, None), list):
                    setattr(node, part, [new for old in getattr(node, part) for new in self.noted(old)])
        return function

    def noted(self, statement):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return [statement]  # a docstring
        self.lines.append(statement.lineno)
        note = ast.parse(f"_executed({statement.lineno})").body[0]
        return [ast.copy_location(ast.fix_missing_locations(note), statement), statement]


def import_with_notes(path, out):
    """Import a lesson's `recorded.py` so that each line that runs is noted when it runs first in a process."""
    lesson, notes, seen = path.parent.name, Notes(), set()
    executed = os.open(out / "executed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(line):
        if line not in seen:
            seen.add(line)
            os.write(executed, f"{lesson}:{line}\n".encode())

    spec = importlib.util.find_spec(f"lessons.{lesson}.recorded")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    module._executed = note
    tree = ast.fix_missing_locations(notes.visit(ast.parse(path.read_text(encoding="utf-8"))))
    exec(compile(tree, path, "exec"), vars(module))
    with (out / "statements").open("a") as file:
        file.writelines(f"{lesson}:{line}\n" for line in notes.lines)


def rehearse(experiment):
    """Measure, tell and draw. Returns its row."""
    import matplotlib.pyplot as plt

    row, began = {"name": f"{experiment.lesson}.{experiment.name}"}, time.monotonic()
    try:
        result = as_stored(experiment.measure(**experiment.small))
        row["bytes"] = {key: len(value) for key, value in result.items() if isinstance(value, bytes)}
        row["words"], row["headline"] = experiment.tell(result), experiment.headline(result)
        if experiment.draw:
            explorer = experiment.draw(result)
            row["figures"] = len(plt.get_fignums()) + (explorer is not None)
        row["result"] = {key: value for key, value in result.items() if not isinstance(value, bytes)}
    except BaseException:
        row["error"] = traceback.format_exc()
    return {**row, "seconds": round(time.monotonic() - began, 2)}


def main(out, *names):
    os.environ[SMALL] = "1"
    for path in LESSONS.glob("*/recorded.py"):
        import_with_notes(path, Path(out))
    chosen = [one for one in all_experiments() if not names or {one.name, one.lesson} & {*names}]
    gc.freeze()  # the forks' `gc.collect()` skips what torch holds
    for experiment in chosen:
        if not os.fork():
            faulthandler.register(signal.SIGALRM, chain=True)  # what waits in vain says where, and ends
            signal.alarm(60)
            row = rehearse(experiment)
            with Path(out, "rows.jsonl").open("a") as rows:
                rows.write(json.dumps(row) + "\n")
            os._exit(0)
        if os.wait()[1]:
            sys.exit(f"{experiment.lesson}.{experiment.name} has died, or has not ended within a minute.")


if __name__ == "__main__":
    main(*sys.argv[1:])
