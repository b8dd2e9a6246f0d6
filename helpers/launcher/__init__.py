"""launch: run a worker script, or a function, in N ranks from a notebook.

    run           `launch` itself, which puts all of this together
    arguments     what `launch` is given is refused with advice, or made into work that can be sent
    client        the fork server, seen from the notebook: start it, replace it, request ranks from it
    processes     the ranks' processes: start, watch, ask, end
    output        what ranks print: read while they run, shown live, ordered by rank in the end
    errors        how ranks fail, and all words about it: RankError
    files         the files of a run, by which ranks and notebook tell each other things
    sending       how functions, arguments, results and exceptions travel
    asking        what a rank asks the notebook: a line from the person
    fork_server   imports torch once, then forks
    rank          become a rank, run the learner's code, leave a result
    meeting       how ranks meet without a port
    ending        the end of a rank is the end of a Python program

What a script finds other than under torchrun stands in docs/launch.md.

Where there is no fork server (macOS, Windows, or COURSE_START_METHOD=spawn in the kernel's environment) all
of it holds, but each rank imports torch itself, so a launch takes seconds, and has a thread that ends it with
the kernel. Windows has no signals between processes, and no process groups: there a hang names the ranks that
wait but not their lines, an interrupt ends ranks in the middle of a line, and what a rank has started may
outlive it.
"""

import contextlib
import multiprocessing
import os

from helpers.launcher import client
from helpers.launcher.errors import RankError
from helpers.launcher.run import launch
from helpers.reporting import RUN_FOLDER

__all__ = ["RankError", "launch"]

_is_our_child = RUN_FOLDER in os.environ or client.OF_A_SERVER in os.environ or multiprocessing.parent_process()
if client.START_METHOD == "forkserver" and not _is_our_child:
    with contextlib.suppress(OSError):  # the first launch will say what is wrong
        client.start()  # its imports take seconds; they go on while the reader reads
