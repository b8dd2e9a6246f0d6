"""How long a launch takes, ours and torchrun's, each in a real Jupyter kernel: see README.md here."""

import argparse
import contextlib
import inspect
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import work  # noqa: E402

from helpers.places import RECORDS  # noqa: E402
from helpers.ports import free_port  # noqa: E402
from helpers.records import store  # noqa: E402
from tests.benchmarks.machine import this_machine  # noqa: E402

LIMIT = 90  # seconds that any one launch may take
TORCHRUN = ('[sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", '
            '"--master-port={port}", "work.py"]')
#: By name: what a notebook imports, and its call, with places for what differs.
WAYS = {
    "launch, function": ("from helpers import launch", "launch({what}, 2, args=({folder!r},))"),
    "launch, script": ("from helpers import launch", "launch('work.py', 2, args={words!r})"),
    "torchrun": ("import subprocess, sys",
                 f"subprocess.run({TORCHRUN} + {{words!r}}, check=True, capture_output=True)"),
}
OURS = ("launch, function", "launch, script")
IN_WORDS = {"group": "two ranks form a group, all-reduce and return",
            "ddp": "two ranks, DDP and AdamW, one step"}


class LaunchFailed(Exception):
    """A launch raised, took too long, or its ranks did not do their work."""


class Kernel:
    """A fresh Jupyter kernel which launches in one way."""

    def __init__(self, way):
        self.imports, self.call = WAYS[way]
        self.manager = KernelManager(kernel_name="python3")
        paths = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.manager.start_kernel(cwd=HERE, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.run("import time\n" + "\n".join(map(inspect.getsource, (work.group, work.ddp))))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        own = psutil.Process(self.manager.provisioner.pid)
        processes = [*own.children(recursive=True), own]
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        for process in psutil.wait_procs(processes, timeout=5)[1]:
            process.kill()

    def run(self, code, value="[]"):
        """Run a cell; return the numbers in the list that the expression `value` then gives."""
        reply = self.client.execute_interactive(
            code, user_expressions={"it": value}, timeout=LIMIT, allow_stdin=False,
            output_hook=lambda message: None)["content"]
        if reply["status"] != "ok":
            raise LaunchFailed(f"{reply.get('ename')}: {reply.get('evalue')}")
        return json.loads(reply["user_expressions"]["it"]["data"]["text/plain"])

    def launch(self, what, extra=(), imports=False):
        """Launch `what` once; return its milliseconds, and what the ranks left."""
        with tempfile.TemporaryDirectory() as folder:
            call = self.call.format(what=what, folder=folder, port=free_port(), words=[what, folder, *extra])
            before, after = (self.imports, "") if imports else ("", self.imports)
            cell = f"{after}\nt0 = time.perf_counter()\n{before}\n{call};\nt1 = time.perf_counter()"
            took, = self.run(cell, "[1000 * (t1 - t0)]")
            left = [float(file.read_text()) for file in sorted(Path(folder).iterdir())]
        if len(left) != 2 or (what == "group" and left != [3, 3]):
            raise LaunchFailed(f"its ranks left {left}")
        return took, left


def measure_first(rounds):
    """{way: milliseconds} of import and first launch, each in a fresh kernel."""
    times = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            with Kernel(way) as kernel:
                times[way].append(kernel.launch("group", imports=True)[0])
    return times


def measure_again(repeats, slow_repeats):
    """{work: {way: milliseconds}} in kernels that have launched before: all ways in turn, again and again."""
    times = {what: {way: [] for way in WAYS} for what in IN_WORDS}
    with contextlib.ExitStack() as stack:
        kernels = {way: stack.enter_context(Kernel(way)) for way in WAYS}
        for kernel in kernels.values():
            kernel.launch("group")
        for turn in range(repeats):
            for what in IN_WORDS:
                for way, kernel in kernels.items():
                    if way in OURS or turn < slow_repeats:
                        time.sleep(0.1)
                        times[what][way].append(kernel.launch(what)[0])
    return times


def measure_training(pairs, seconds):
    """Steps per second of a script under launch and under torchrun, in pairs whose order alternates."""
    found = []
    with Kernel("launch, script") as ours, Kernel("torchrun") as theirs:
        for turn in range(pairs):
            order = [("launch", ours), ("torchrun", theirs)][:: -1 if turn % 2 else 1]
            found.append({name: min(kernel.launch("train", [str(seconds)])[1]) for name, kernel in order})
    return found


def table(title, times):
    ours = statistics.median(times[OURS[0]])
    lines = ["", f"{title:54}   n  median     min     max  × ours"]
    for way, some in times.items():
        middle = statistics.median(some)
        lines.append(f"  {way:52}{len(some):4}{middle:8.0f}{min(some):8.0f}{max(some):8.0f}"
                     f"{middle / ours:8.1f}")
    return "\n".join(lines)


def checks(again, training):
    """What must be reached: (what, measured, least, most)."""
    medians = {way: statistics.median(times) for way, times in again["group"].items()}
    for way in OURS:
        yield f"{way}: again, group (ms)", medians[way], 0, 60
        yield f"{way}: again, torchrun / ours", medians["torchrun"] / medians[way], 60, float("inf")
    ratio = statistics.median(pair["launch"] / pair["torchrun"] for pair in training)
    yield "training, launch / torchrun, median of pairs", ratio, 0.98, float("inf")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work?")
    parser.add_argument("--json", type=Path, default=RECORDS / "launch.json", help="where the numbers go")
    options = parser.parse_args()
    machine = this_machine()
    first = measure_first(1 if options.quick else 3)
    again = measure_again(*((3, 2) if options.quick else (15, 5)))
    training = measure_training(*((2, 2) if options.quick else (5, 6)))
    print("Milliseconds\n" + table("Import and first launch, in a fresh kernel", first))
    for what, words in IN_WORDS.items():
        print(table(f"Again: {words}", again[what]))
    print("\nTraining, steps per second inside the loop:", training, "\n\nMust be reached")
    missed = []
    for what, value, least, most in checks(again, training):
        reached = least <= value <= most
        print(f"  {'ok  ' if reached else 'FAIL'} {what:50} {value:8.2f}   {least} to {most}")
        if not reached:
            missed.append(what)
    content = {"machine": machine, "milliseconds": {"first": first, **again}, "steps per second": training}
    store(options.json, content)
    if missed:
        sys.exit("not reached: " + "; ".join(missed))


if __name__ == "__main__":
    main()
