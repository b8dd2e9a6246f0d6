"""Measure on this machine what needs GPUs, and store it: the experiments of notebooks/lessons/*/recorded.py.

    python tools/record.py                   all of them, most wanted first
    python tools/record.py mixed_precision   those of this lesson
    python tools/record.py products          this one

Needs torch 2.11 or newer, numpy, matplotlib, cloudpickle and psutil; the course need not be installed. Each experiment
runs in a process of its own and is stored in data/records/gpus/ as soon as it has ended; one that fails, or needs more
GPUs, keeps what an earlier run had. The table at the end says what was found, or why nothing was. With
COURSE_SMALL_EXPERIMENTS=1 all run in sizes for a rehearsal, and nothing is stored.
"""

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(ROOT), str(ROOT / "notebooks")  # where nothing is installed; ranks have the same path

from helpers import RankError  # noqa: E402
from helpers.experiments import SMALL, experiments, machine, own_words  # noqa: E402
from helpers.hardware import hardware  # noqa: E402


def all_experiments():
    """Every lesson's experiments, those that are wanted most first."""
    lessons = sorted(path.parent.name for path in (ROOT / "notebooks" / "lessons").glob("*/recorded.py"))
    found = [one for lesson in lessons for one in experiments(lesson).values()]
    return sorted(found, key=lambda one: one.wanted)


def record(experiment, limit):
    """Run an experiment and store what it finds. Returns seconds, and the number or the reason."""
    began = time.monotonic()
    if experiment.gpus > hardware.usable_gpus:
        return 0.0, f"not run: needs {experiment.gpus} GPU(s), this machine has {hardware.usable_gpus}"
    try:
        measured = experiment.run(limit)
        if SMALL not in os.environ:
            experiment.store(measured)
        outcome = headline(experiment, measured["result"])
    except RankError as error:
        print(error.logs[0][-4000:], error.failures[0].traceback or error, sep="\n")
        outcome = f"FAILED: {own_words(error.failures[0].message)}"
    except Exception as error:  # of the disk, or of an earlier record: the others have their turn all the same
        outcome = f"FAILED: {type(error).__name__}: {error}"
    return time.monotonic() - began, outcome


def headline(experiment, result):
    """The number that matters, or why the words do not say it: they can be mended later, the result is kept."""
    try:
        return experiment.headline(result)
    except Exception as error:
        return f"measured, but its words fail: {type(error).__name__}: {error}"


def main():
    parser = argparse.ArgumentParser(description="Measure what needs GPUs, on this machine, and store it.")
    parser.add_argument("names", nargs="*", help="lessons or experiments; without, all")
    parser.add_argument("--limit", type=float, default=120, help="seconds that an experiment may take at most (120)")
    options = parser.parse_args()
    known = all_experiments()
    if unknown := {*options.names} - {one.name for one in known} - {one.lesson for one in known}:
        parser.error(f"no experiment or lesson is called {' or '.join(sorted(unknown))}. "
                     f"The lessons: {', '.join(sorted({one.lesson for one in known}))}")
    chosen = [one for one in known if not options.names or {one.name, one.lesson} & {*options.names}]
    print(", ".join(f"{what} {value or 'none'}" for what, value in machine().items()), flush=True)
    began, rows = time.monotonic(), []
    for experiment in chosen:
        seconds, outcome = record(experiment, options.limit)
        rows.append((f"{experiment.lesson}.{experiment.name}", f"{seconds:.1f} s of {experiment.seconds:g}", outcome))
        if seconds:
            print(*rows[-1], sep="  ", flush=True)
    print(f"\n{len(rows)} experiments in {time.monotonic() - began:.0f} s:")
    width = max(len(name) for name, *_ in rows)
    for name, seconds, outcome in rows:
        print(f"{name:{width}}  {seconds:>15}  {outcome}")


if __name__ == "__main__":
    main()
