"""Who waited in vain, and where: ranks that lose each other in a collective, on machines quick and busy.

A rank's collectives end after a limit. Whether the limit was fair is measured, not guessed: `starved` tells
for how long this process was ready to run and had no core to run on.
"""

import contextlib
import inspect
import itertools
import os
import re
import time
import traceback
from datetime import timedelta
from pathlib import Path

from helpers.reporting import RUN_FOLDER

#: Seconds after which a rank on a quiet machine gives up a collective to which not all ranks come.
PATIENCE = 1.5

#: What gloo says of an operation that was waited for in vain, and of those after it.
IN_VAIN = re.compile(r"Timed out waiting \d+ms|"  # the limit was reached in this rank,
                     r"Application timeout caused pair closure|"  # or had been before, by another operation,
                     r"Connection (closed|reset) by peer|Broken pipe|"  # or in the other rank, which then closed
                     r"monitoredBarrier")

_meetings = itertools.count()


def starved():
    """Seconds for which this process's living threads have been ready to run and waited for a core.

    0 where the system does not say. Source: Linux, Documentation/scheduler/sched-stats.rst (schedstat).
    """
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += int(thread.read_text().split()[1])
    return total / 1e9  # of nanoseconds


def form_group(patience=PATIENCE):
    """Meet the other ranks and form the default group (gloo), whose collectives end after `patience` seconds.

    On a busy machine they end later, by twenty times as long as this rank has been without a core so far.

    Returns the limit in seconds.
    """
    import torch.distributed as dist

    meet()
    limit = patience + 20 * starved()
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit))
    return limit


def meet(word=""):
    """Wait until every rank of this run has come here, for who leaves takes its connections along.

    Returns what each rank said, by rank.
    Raises RuntimeError: a rank has failed, and will not come.
    """
    from helpers.launcher.files import Files, write  # here, because it starts the fork server

    number = next(_meetings)  # the same in all ranks, because each rank comes to each meeting
    folder = Path(os.environ[RUN_FOLDER])
    ranks = range(int(os.environ["WORLD_SIZE"]))
    marks = [folder / f"here-{number}-{rank}" for rank in ranks]
    failures = [Files(folder, rank).failure for rank in ranks]
    write(marks[int(os.environ["RANK"])], word.encode())
    # `map`, and no generator: feedback knows a rank that waits here by the function's name, `meet`.
    while not all(map(Path.exists, marks)):
        if any(map(Path.exists, failures)):
            # gloo's words, by which `launch` knows that this failure follows from another one.
            raise RuntimeError("Connection closed by peer: another rank has failed")
        time.sleep(0.002)
    return [mark.read_text(encoding="utf-8") for mark in marks]


def own_line(error, function):
    """The innermost line of the function's own file in the traceback of `error`; "?" if there is none."""
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    own = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            own = frame.line
    without_comment = own.partition("  #")[0].strip()
    return without_comment or "?"
