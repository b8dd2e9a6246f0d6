"""Run the experiments that need GPUs on this machine, and store what they found, one JSON a lesson.

    python tools/record.py                   all lessons
    python tools/record.py mixed_precision   this one

Needs torch 2.11 or newer, and nothing installed of the course itself. An experiment is a function of
notebooks/lessons/*/recorded.py marked with `@experiment`. Each runs in a process of its own, which is ended
after `--limit` seconds: a crash or a hang costs that experiment only. One that cannot run here keeps what an
earlier machine found; so each result in data/records/ names its machine (form: helpers/records.py, `read`).
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(ROOT), str(ROOT / "notebooks")  # for the imports below, and experiments' own processes

from helpers import records  # noqa: E402
from helpers.hardware import hardware  # noqa: E402

LESSONS = sorted(path.parent.name for path in (ROOT / "notebooks" / "lessons").glob("*/recorded.py"))


def machine():
    """What a result says of the machine that it is from."""
    import torch

    names = Counter(gpu.name for gpu in hardware.gpus)
    return {"gpus": " + ".join(f"{count} × {name}" for name, count in names.items()),
            "driver": hardware.driver, "cuda": torch.version.cuda, "torch": torch.__version__,
            "python": platform.python_version(), "date": datetime.date.today().isoformat()}


def run(lesson, name, limit):
    """Run one experiment in a process of its own.

    Returns:
        Its result, as JSON gives it back, and None; or None and why there is no result.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder, "answer"), Path(folder, "log")
        with log.open("wb") as output:
            command = [sys.executable, __file__, "--one", lesson, name, answer]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return None, f"not finished after {limit:g} s"
            finally:  # also what it has started and left behind, and also at Ctrl+C
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if answer.exists():
            return json.loads(answer.read_text(encoding="utf-8")), None
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        print("".join(f"    {line}\n" for line in said[-20:]), end="")
        if process.returncode < 0:
            return None, f"ended by {signal.Signals(-process.returncode).name}"
        return None, f"raised {said[-1]}" if said else f"ended with exit code {process.returncode}"


def run_here(lesson, name, answer):
    """The process that `run` starts: the answer is written whole or not at all."""
    result = records.experiments(lesson)[name]()
    if result is None:
        raise ValueError("the experiment returned None")
    answer.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
    answer.with_suffix(".part").replace(answer)


def record(lesson, limit):
    """Run the experiments of a lesson that can run here, and store what they found."""
    before, experiments = records.read(lesson), records.experiments(lesson)
    results = {name: before["results"][name] for name in experiments if name in before["results"]}
    skipped = {}
    for name, function in experiments.items():
        print(f"{lesson}.{name}: ", end="", flush=True)
        began, result = time.monotonic(), None
        if function.gpus > hardware.usable_gpus:
            why = f"needs {function.gpus} GPUs, this machine has {hardware.usable_gpus}"
        else:
            result, why = run(lesson, name, limit)
        seconds = time.monotonic() - began
        if why is None:
            results[name] = {"result": result, "seconds": round(seconds, 1), **machine()}
            print(f"{seconds:.1f} s")
        else:
            skipped[name] = why
            print(f"skipped after {seconds:.1f} s: {why}" + "; the earlier result stays" * (name in results))
        records.store(records.RECORDS / f"{lesson}.json", {"results": results, "skipped": skipped})
    return skipped


def main():
    parser = argparse.ArgumentParser(description="Record what needs a GPU, on this machine.")
    parser.add_argument("lessons", nargs="*", metavar="lesson", help=f"some of: {', '.join(LESSONS)}")
    parser.add_argument("--limit", type=float, default=120, help="seconds that an experiment may take (120)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        lesson, name, answer = options.one
        return run_here(lesson, name, Path(answer))
    if unknown := set(options.lessons) - set(LESSONS):
        parser.error(f"no experiments in {', '.join(sorted(unknown))}; choose from {', '.join(LESSONS)}")
    if not hardware.usable_gpus:
        print("There is no GPU here that torch can use: nothing was run, and nothing was changed.")
        return None
    print(", ".join(f"{what} {value}" for what, value in machine().items()))
    began = time.monotonic()
    skipped = [why for lesson in options.lessons or LESSONS for why in record(lesson, options.limit).values()]
    print(f"{time.monotonic() - began:.0f} s in all, {len(skipped)} skipped; results are in data/records/")
    return None


if __name__ == "__main__":
    main()
