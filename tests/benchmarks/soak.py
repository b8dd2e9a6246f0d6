"""Random launches, one after the other: each ends as it must, and all together leave this machine as it was.

    .venv/bin/python tests/benchmarks/soak.py --launches 1000 --seed 0
    .venv/bin/python tests/benchmarks/soak.py --seed 0 --first 417 --launches 1    # launch 417 again

A launch is drawn by the seed and its number alone. It prints a table, and ends with 1 if something is left,
if a launch ended in another way than it must, or if anything was said that no rank has said.
"""

import argparse
import collections
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

KINDS = {  # how a launch of this kind must end
    "ok": "results", "big results": "results", "flood": "results", "reports": "results",
    "leaves a child": "results",
    "raises": "RankError", "os._exit": "RankError", "signal": "RankError", "hang": "no result",
    "Ctrl+C": "interrupted", "stop": "interrupted"}
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT]
LIMIT, WARM = 120, 40  # seconds for a launch that must not hang; launches until every cache is filled
MEMORY = 24 * 2**20  # what the memory of a process may grow by: the allocator's own unrest


def work(kind, amount, culprit, group):
    """What a rank does; the rank `culprit` alone goes wrong."""
    import torch

    from helpers import report

    rank, amount = int(os.environ["RANK"]), int(amount)
    if group == "True":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(amount))
    report(started=rank)
    if rank == int(culprit):
        if kind == "raises":
            raise ValueError("x" * amount)
        if kind == "os._exit":
            os._exit(1 + amount % 250)
        if kind == "signal":
            os.kill(os.getpid(), SIGNALS[amount % len(SIGNALS)])
        if kind in ("hang", "Ctrl+C", "stop"):
            time.sleep(1000)
    if kind == "flood":
        print("\n".join(["x" * 99] * amount * 10))
    if kind == "reports":
        for step in range(amount):
            report(step=step)
    if kind == "leaves a child":
        subprocess.Popen(["sleep", "1000"])
    if group == "True":
        dist.all_reduce(torch.ones(amount))  # in vain, where the culprit is gone
    return torch.ones(amount * (1000 if kind == "big results" else 1))


def draw(seed, number):
    """(kind, number of ranks, the arguments of `work`, whether as a script, seconds until an interrupt)."""
    dice = random.Random(f"{seed}-{number}")
    kind, nprocs = dice.choice(list(KINDS)), dice.randint(1, 4)
    args = kind, dice.randint(1, 1000), dice.randrange(nprocs), str(dice.random() < 0.5)
    return kind, nprocs, args, dice.random() < 0.5, dice.uniform(0, 0.5)


def launched(kind, nprocs, args, script, moment):
    """How one launch ended: as KINDS names it; or in words what was wrong."""
    from helpers import RankError, launch

    stop = threading.Event()
    interrupt = stop.set if kind == "stop" else lambda: os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(moment, interrupt)  # from before the start to while they wait
    try:
        if kind in ("Ctrl+C", "stop"):
            timer.start()
        what = (__file__, nprocs, [str(arg) for arg in args]) if script else (work, nprocs, args)
        run = launch(*what, timeout=0.3 if kind == "hang" else LIMIT, show=False, stop=stop)
    except RankError as error:
        sent = SIGNALS[args[1] % len(SIGNALS)]
        if kind == "signal" and error.exitcode not in (None, -sent):
            return f"exit code {error.exitcode}"
        return "no result" if error.exitcode is None else "RankError"
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        timer.cancel()
    wanted = args[1] * (1000 if kind == "big results" else 1)
    if script:
        rows = 1 + args[1] * (kind == "reports")
        return "results" if all(len(one) == rows for one in run.results) else "rows are missing"
    return "results" if all(len(one) == wanted for one in run.results) else "results are not whole"


def counts(shared):
    """What there is now, by name: all that must be as it was. `shared`: others' names in /dev/shm."""
    import psutil

    from helpers.launcher import client
    from tests import conftest

    multiprocessing.active_children()  # which forgets the ranks that have said goodbye and ended since
    gc.collect()
    me, server = psutil.Process(), psutil.Process(client.start().process.pid)
    return {"descriptors": me.num_fds(), "descriptors of the fork server": server.num_fds(),
            "threads": me.num_threads(), "processes": len(conftest.children()),
            "names in /dev/shm": len(conftest.orphaned_memory(shared)),
            "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
            "memory": me.memory_full_info().uss, "memory of the fork server": server.memory_full_info().uss}


def grown(before, now):
    """The names of what is not as it was."""
    return [name for name in before if (now[name] > before[name] + MEMORY if name.startswith("memory")
                                        else now[name] != before[name])]


def main(options):
    from helpers import launch

    shared, wrong, kinds = set(os.listdir("/dev/shm")), [], collections.Counter()
    launch(print, show=False)
    warm = min(WARM, options.launches // 2)
    for number in range(options.first, options.first + options.launches):
        if number == options.first + warm:
            time.sleep(0.5)
            before = counts(shared)
        kind, *how = draw(options.seed, number)
        ended = launched(kind, *how)
        kinds[kind] += 1
        if ended != KINDS[kind]:
            wrong.append(f"launch {number} of seed {options.seed} ({kind}, {how}) ended with: {ended}")
    end = time.monotonic() + 10  # for processes that are being killed
    while grown(before, now := counts(shared)) and time.monotonic() < end:
        time.sleep(0.1)
    print(f"{options.launches} launches, seed {options.seed}:", dict(kinds))
    left = grown(before, now)
    for name, old in before.items():
        print(f"  {name:32} {old:12,} → {now[name]:12,} {'LEFT BEHIND' if name in left else ''}")
    print(*wrong, sep="\n")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    if "RANK" in os.environ:  # this file is the script of those launches that run one, too
        work(*sys.argv[1:])
        sys.exit()
    parser = argparse.ArgumentParser(description="Launch at random, and look at what is left.")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first launch")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was started to ignore it
        sys.exit(main(options))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:  # of its own: nothing else comes or goes
        command = [sys.executable, __file__, *sys.argv[1:], "--here"]
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 10  # the fork server removes what a kernel has left
        while (left := os.listdir(folder)) and time.monotonic() < end:
            time.sleep(0.1)
    print(done.stderr, end="", file=sys.stderr)
    if left:
        sys.exit(f"left behind after the end: {left}")
    sys.exit(done.returncode or int("Traceback" in done.stderr))
