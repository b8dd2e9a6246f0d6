"""Experiments in small sizes, each in a fork: what they find, whether they can be shown, which lines ran.

    python -m tests.rehearsal OUT [name of an experiment or lesson …]      (under stand-in GPUs: tests/stand_in_gpus)

OUT/rows.jsonl gets a line an experiment: {"name", "seconds", "result" and "words", or "error"}; OUT/lines a line for
each line of a `recorded.py` that was executed, also in processes that experiments have forked: `lesson:number`.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

import matplotlib
import torch._dynamo  # noqa: F401  (the forks share it: every optimizer imports it)

from helpers.experiments import SMALL
from tools.record import all_experiments

matplotlib.use("Agg")


def trace(path):
    """Note each line of a `recorded.py` in a file when it is first executed, in this process and its forks."""
    file, seen = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), set()

    def at_line(frame, event, _):
        place = f"{Path(frame.f_code.co_filename).parent.name}:{frame.f_lineno}\n"
        if event == "line" and place not in seen:
            seen.add(place)
            os.write(file, place.encode())
        return at_line

    sys.settrace(lambda frame, *_: at_line if frame.f_code.co_filename.endswith("recorded.py") else None)


def rehearse(experiment, lines):
    """Measure, tell and draw. Returns its row."""
    import matplotlib.pyplot as plt

    from helpers.experiments import as_stored

    row, began = {"name": f"{experiment.lesson}.{experiment.name}"}, time.monotonic()
    trace(lines)
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
    chosen = [one for one in all_experiments() if not names or {one.name, one.lesson} & {*names}]
    gc.freeze()  # the forks' `gc.collect()` skips what torch holds
    for experiment in chosen:
        if not os.fork():
            row = rehearse(experiment, Path(out, "lines"))
            with Path(out, "rows.jsonl").open("a") as rows:
                rows.write(json.dumps(row) + "\n")
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
