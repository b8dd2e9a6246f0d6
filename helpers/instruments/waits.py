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

#: What a collective says that was waited for in vain; left by a peer, or longer than its limit.
IN_VAIN = re.compile(r"Timed out waiting|[Tt]imeout|Connection (closed|reset) by peer|Broken pipe|"
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
    return total / 1e9


def form_group(patience=PATIENCE):
    """Meet the other ranks and form the default group (gloo), whose collectives end after `patience` seconds.

    On a busy machine they end later, by twenty times as long as this rank has been without a core so far.

    Returns the limit in seconds.
    """
    import torch.distributed as dist

    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # for `helpers.instruments.collectives`
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

    number, folder = next(_meetings), Path(os.environ[RUN_FOLDER])
    ranks = range(int(os.environ["WORLD_SIZE"]))
    marks = [folder / f"here-{number}-{rank}" for rank in ranks]
    failures = [Files(folder, rank).failure for rank in ranks]
    write(marks[int(os.environ["RANK"])], word.encode())
    while not all(map(Path.exists, marks)):  # no generator: who is found waiting is to be "in meet"
        if any(map(Path.exists, failures)):
            raise RuntimeError("Connection closed by peer: another rank has failed")
        time.sleep(0.002)
    return [mark.read_text(encoding="utf-8") for mark in marks]


def own_line(error, function):
    """The innermost line of the function's own file in the traceback of `error`; "?" if there is none."""
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return (lines or [""])[-1].partition("  #")[0].strip() or "?"
