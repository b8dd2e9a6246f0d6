"""Start children by fork, spawn and forkserver: what does each child receive, and what does it cost?

    launch("start_methods.py", nprocs=1)
    launch("start_methods.py", nprocs=1, args=["--preload", "torch"])   the fork server, told what to import
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time

TORCH_WAS_HERE = "torch" in sys.modules  # a forked child does not run this line, nor the import below

import psutil  # noqa: E402
import torch  # noqa: E402, F401  (what most children need first)

from helpers.reporting import RUN_FOLDER, report  # noqa: E402

IMPORTED_IN = os.getpid()  # the process in which the top of this script ran
SETTING = "as in the script"
LOCK = threading.Lock()
CHILDREN = {"fork": 3, "spawn": 2, "forkserver": 2}  # how many children each method starts


def change_things():
    """Do what a notebook may have done: set a variable, lock a lock, start a thread."""
    global SETTING
    SETTING = "changed later"
    LOCK.acquire()
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def has_open(file, number):
    """Whether this process has the parent's file open under the same number."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(file))
    except OSError:
        return False


def had_to_import():
    """Whether this process has itself imported torch for the top of this script."""
    return IMPORTED_IN == os.getpid() and not TORCH_WAS_HERE


def child(answers, file, number):
    """Tell what this child has got."""
    answers.send({
        "setting": SETTING,
        "lock": "locked" if LOCK.locked() else "free",
        "threads": threading.active_count(),
        "file": "open" if has_open(file, number) else "closed",
        "torch": "imported anew" if had_to_import() else "already there",
        "mib": psutil.Process().memory_full_info().uss / 2**20,  # memory that no other process shares
    })


def ask_one_child(context, *args):
    """Start one child; return its answer, and the milliseconds until it came."""
    here, there = context.Pipe()
    began = time.perf_counter()
    process = context.Process(target=child, args=(there, *args))
    process.start()
    if not here.poll(60):
        raise TimeoutError("no answer within 60 s")
    answer = here.recv()
    milliseconds = (time.perf_counter() - began) * 1000
    process.join()
    return answer, milliseconds


def main():
    """Ask children of each kind, and print a column for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preload", nargs="*", default=[])
    preload = parser.parse_args().preload
    children = CHILDREN
    if preload:
        children = {"forkserver": 2}
    # Even if the list is empty: without this call, some versions of Python import this script in the server.
    multiprocessing.set_forkserver_preload(preload)
    change_things()
    rows = []
    # Under `launch` the file is removed with the run, even if this rank is killed.
    with tempfile.NamedTemporaryFile(dir=os.environ.get(RUN_FOLDER)) as file:
        for method, number in children.items():
            context = multiprocessing.get_context(method)
            times = []
            for _ in range(number):
                answer, milliseconds = ask_one_child(context, file.name, file.fileno())
                times.append(milliseconds)
            # The first child of a method may also wait for the server, or for imports. Later ones show the usual cost.
            usual = statistics.median(times[1:])
            rows.append({"method": method, **answer, "first_ms": times[0], "ms": usual})
    for name in ("method", "setting", "lock", "threads", "file", "torch"):
        print(f"{name:10}" + "".join(f"{row[name]:<18}" for row in rows).rstrip())
    for row in rows:
        report(**row)


if __name__ == "__main__":
    main()
