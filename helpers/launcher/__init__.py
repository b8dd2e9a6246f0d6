"""launch: run a worker script, or a function, in N ranks from a notebook.

    arguments   what `launch` is given is refused with advice, or made into work that can be sent
    server      the fork server that has torch imported (`preload` is what it imports)
    processes   the ranks' processes: start, watch, ask, end
    rank        what happens inside a rank
    output      what ranks print: read while they run, shown live, ordered by rank in the end
    errors      RankError
    workarounds every private name that all this needs, each with its finding
    run         `launch` itself, which puts them together
"""

import contextlib
import multiprocessing
import os

from helpers.launcher import server
from helpers.launcher.errors import Failure, RankError
from helpers.launcher.run import Run, launch

__all__ = ["Failure", "RankError", "Run", "launch"]

if multiprocessing.parent_process() is None and server.SESSION not in os.environ:  # neither a rank nor the server
    with contextlib.suppress(OSError):  # the first launch will say what is wrong
        server.start()  # its imports take seconds; they go on while the reader reads
