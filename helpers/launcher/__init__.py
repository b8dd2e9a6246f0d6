"""launch: run a worker script, or a function, in N ranks from a notebook.

    arguments   what `launch` is given is refused with advice, or made into work that can be sent
    server      the fork server that has torch imported (`preload` is what it imports)
    processes   the ranks' processes: start, watch, ask, end
    rank        what happens inside a rank
    output      what ranks print: read while they run, shown live, ordered by rank in the end
    errors      RankError
    workarounds every private name that all this needs, each with its finding
    run         `launch` itself, which puts them together

Where there is no fork server (macOS, Windows, or COURSE_START_METHOD=spawn in the kernel's environment) all of it
holds, but each rank imports torch itself, so a launch takes seconds. Windows has no signals between processes, and no
process groups: there a hang names the ranks that wait but not their lines, an interrupt ends ranks in the middle of a
line, and what a rank has started may outlive it.
"""

import contextlib
import multiprocessing
import os

from helpers.launcher import server
from helpers.launcher.errors import RankError
from helpers.launcher.run import launch

__all__ = ["RankError", "launch"]

if multiprocessing.parent_process() is None and server.SESSION not in os.environ:  # neither a rank nor the server
    with contextlib.suppress(OSError):  # the first launch will say what is wrong
        server.start()  # its imports take seconds; they go on while the reader reads
