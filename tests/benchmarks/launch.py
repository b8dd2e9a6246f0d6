"""How long a launch takes, ours beside others', each in a real Jupyter kernel: see README.md in this folder."""

import argparse
import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from engines import ENGINES, FIRSTS, FUNCTION, LATER, SCRIPT, Kernel, LaunchFailed  # noqa: E402

from helpers.hardware import hardware  # noqa: E402
from helpers.records import store  # noqa: E402

IN_WORDS = {"group": "two ranks form a group, all-reduce and return", "ddp": "two ranks, DDP and AdamW, one step"}


class Results:
    """Every time measured, and what could not be measured."""

    def __init__(self):
        self.times, self.failures, self.absent, self.training = {}, Counter(), {}, []
        self.failed_last = set()

    def usable(self, engines):
        """Those of `engines`, a dict by name, that are installed and have not failed twice in a row."""
        for name in engines:
            if find_spec(FIRSTS[name].package) is None:
                self.absent[name] = "not installed"
        return {name: engine for name, engine in engines.items() if name not in self.absent}

    def add(self, section, name, milliseconds):
        self.times.setdefault(section, {}).setdefault(name, []).append(milliseconds)

    @contextlib.contextmanager
    def noting_failure_of(self, name):
        """Go on with the others, and take an engine that fails twice in a row out of the race.

        Once is no reason: a rank of torchrun's or spawn's aborts now and then, when its work is done.
        """
        try:
            yield
            self.failed_last.discard(name)
        except LaunchFailed as error:
            print(f"{name}: {error}", file=sys.stderr)
            self.failures[name] += 1
            if name in self.failed_last:
                self.absent[name] = "failed"
            self.failed_last.add(name)

    def median(self, section, name):
        times = self.times.get(section, {}).get(name)
        return statistics.median(times) if times else None


def measure_first(results, rounds):
    """The first launch of a fresh kernel, engines in turn: `import` and launch in one cell, or 4 s between them."""
    for _ in range(rounds):
        for name, engine in results.usable(FIRSTS).items():
            with results.noting_failure_of(name), Kernel(engine) as kernel:
                if engine.wait:
                    kernel.run(engine.setup)
                    time.sleep(engine.wait)
                before, took, _ = kernel.launch("group", setup="" if engine.wait else engine.setup)
                results.add("first", name, took)
                if not engine.wait:
                    results.add("import", name, before)
                    results.add("import + first", name, before + took)


def measure_again(results, repeats, slow_repeats):
    """Launches in kernels that have launched before: one engine after the other, again and again."""
    with contextlib.ExitStack() as stack:
        kernels = {}
        for name, engine in results.usable(ENGINES).items():
            with results.noting_failure_of(name):
                kernels[name] = stack.enter_context(Kernel(engine))
                kernels[name].launch("group", setup=engine.setup)
        for turn in range(repeats):
            for what in IN_WORDS:
                for name in results.usable(kernels):
                    if ENGINES[name].slow and turn * slow_repeats // repeats == (turn - 1) * slow_repeats // repeats:
                        continue
                    time.sleep(0.1)
                    with results.noting_failure_of(name):
                        results.add(what, name, kernels[name].launch(what)[1])


def measure_training(results, pairs, seconds):
    """Steps per second of the same script under launch and under torchrun, in pairs whose order alternates."""
    with results.noting_failure_of("training"), Kernel(ENGINES[SCRIPT]) as ours, Kernel(ENGINES["torchrun"]) as theirs:
        ours.run(ENGINES[SCRIPT].setup)
        theirs.run(ENGINES["torchrun"].setup)
        for turn in range(2 * pairs):  # torch aborts now and then at the end of a torchrun: such a pair does not count
            order = [("launch", ours), ("torchrun", theirs)][:: -1 if turn % 2 else 1]
            with contextlib.suppress(LaunchFailed):
                speeds = {name: min(kernel.launch("train", [str(seconds)])[2]) for name, kernel in order}
                results.training.append(speeds)
            if len(results.training) == pairs:
                break


def tables(results):
    """The results as text, one table a section."""
    titles = {"first": "First launch in a fresh kernel, group", "import + first": "The same, with the imports it needs"}
    titles |= {what: f"Again: {words}" for what, words in IN_WORDS.items()}
    lines = []
    for section, title in titles.items():
        lines += ["", f"{title:54}   n  median     min     max  × ours"]
        for name in FIRSTS if section == "first" else ENGINES:
            times = results.times.get(section, {}).get(name, [])
            middle = statistics.median(times) if times else 0
            numbers = f"{len(times):4}{middle:8.0f}{min(times):8.0f}{max(times):8.0f}" if times else ""
            ours = results.median(section, FUNCTION)
            ratio = f"{middle / ours:8.2f}" if times and ours else ""
            failed = f"failed {results.failures[name]}×" if results.failures[name] else results.absent.get(name, "")
            lines.append(f"  {name:52}{numbers}{ratio}  {failed}".rstrip())
    lines += ["", f"{'Training, steps per second inside the loop':54}  launch  torchrun  ratio"]
    for number, pair in enumerate(results.training, 1):
        ours, theirs = pair["launch"], pair["torchrun"]
        lines.append(f"  {f'pair {number}':52}{ours:8.1f}{theirs:10.1f}{ours / theirs:7.3f}")
    return "All launches in milliseconds\n" + "\n".join(lines)


def checks(results):
    """What must be reached: (what, measured or None, limit, whether it holds)."""
    def ratio(above, below):
        return above / below if above and below else None

    m, rows, ours = results.median, [], [FUNCTION, SCRIPT, FUNCTION + LATER, SCRIPT + LATER, "training"]
    for name in (FUNCTION, SCRIPT):
        group, later = m("group", name), f"{name}{LATER}"
        rows += [
            (f"{name}: again, group (ms)", group, "<=", 40),
            (f"{name}: again, torchrun / ours", ratio(m("group", "torchrun"), group), ">=", 75),
            (f"{name}: again, ours / fork", ratio(group, m("group", "fork from the kernel")), "<=", 1.1),
            (f"{name}: again, DDP and AdamW (ms)", m("ddp", name), "<=", 100),
            (f"{later}: first (ms)", m("first", later), "<=", 150),
            (f"{name}: import and first at once, ours / torchrun",
             ratio(m("import + first", name), m("import + first", "torchrun")), "<=", 1),
        ]
    pairs = [pair["launch"] / pair["torchrun"] for pair in results.training]
    rows += [
        ("training, launch / torchrun, median of pairs", statistics.median(pairs) if pairs else None, ">=", 0.98),
        ("launches of ours that failed", sum(results.failures[name] for name in ours), "<=", 0),
    ]
    return [{"what": what, "measured": value and round(value, 3), "must be": f"{sign} {limit}",
             "reached": value is not None and (value <= limit if sign == "<=" else value >= limit)}
            for what, value, sign, limit in rows]


def machine():
    """Where this was measured: no host or user name, no path."""
    def found(package):
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    packages = ("ipykernel", "accelerate", "torchrunx")
    return {"cpu": hardware.cpu, "cores": hardware.cores, "memory_gib": round(hardware.memory_gib, 1),
            "load_before": round(os.getloadavg()[0], 2), "date": datetime.date.today().isoformat(),
            "versions": hardware.versions | {package: found(package) for package in packages}}


PEERS = ("accelerate==1.15.0", "torchrunx==0.4.0")


def beside_peers():
    """Run this program again in a scratch environment, which sees all packages of this one and has PEERS besides."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        found = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                               capture_output=True, text=True, check=True).stdout.strip()
        Path(found, "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        return subprocess.run([python, __file__, *sys.argv[1:], "--here"]).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="in this environment, with the peers that it has")
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work?")
    parser.add_argument("--check", action="store_true", help="exit with 1 if something that must be reached is not")
    parser.add_argument("--repeats", type=int, help="of each repeated launch (15; with --quick 3)")
    parser.add_argument("--json", type=Path, default=HERE.parents[1] / "data" / "records" / "launch.json",
                        help="where the numbers go")
    options = parser.parse_args()
    if not options.here:
        sys.exit(beside_peers())
    repeats = options.repeats or (3 if options.quick else 15)
    results, here = Results(), machine()
    print("first launches, each in a fresh kernel …", file=sys.stderr)
    measure_first(results, 1 if options.quick else 3)
    print("repeated launches …", file=sys.stderr)
    measure_again(results, repeats, min(repeats, 2 if options.quick else 5))
    print("training …", file=sys.stderr)
    measure_training(results, *((2, 2) if options.quick else (5, 6)))
    checked = checks(results)
    print(tables(results), "\n\nMust be reached")
    for row in checked:
        value = "not measured" if row["measured"] is None else f"{row['measured']:.3f}"
        print(f"  {'ok  ' if row['reached'] else 'FAIL'} {row['what']:58} {value:>12}   {row['must be']}")
    content = {"machine": here, "milliseconds": results.times, "steps per second": results.training,
               "absent": results.absent, "checks": checked}
    store(options.json, content)
    missed = [row["what"] for row in checked if not row["reached"]]
    if options.check and missed:
        sys.exit("not reached: " + "; ".join(missed))


if __name__ == "__main__":
    main()
