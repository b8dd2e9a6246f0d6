"""The `__main__` of processes that a rank starts, where the rank runs a function of a notebook.

A process that is not forked from the rank itself (spawn; multiprocessing's fork server, which is the default on
Linux from Python 3.14 on, for the workers of a DataLoader, too) is sent classes and functions as names in `__main__`.
So it runs the main script again to have them. A notebook has no script; `rank` says that this file is it.
"""

import linecache
import os
import pickle
from pathlib import Path

from helpers.launcher import sending
from helpers.reporting import RUN_FOLDER

work = pickle.loads(Path(os.environ[RUN_FOLDER], "work").read_bytes())
linecache.cache.update(work["cells"])
globals().update(sending.names_of_cells(work["call"]))
