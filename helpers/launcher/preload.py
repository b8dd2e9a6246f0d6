"""What the fork server imports. It imports, and nothing else (see `server.py`): no tensor is ever made here."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

from helpers.launcher import rank, server, workarounds

# torch._dynamo, because the first optimizer that a rank makes imports 800 modules through it; cloudpickle, the rank's
# own code and that by which multiprocessing starts it, because every rank needs them, and what the ranks of a check
# need. Never a learner's module: an edit would not be seen.
MODULES = ["numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo",
           "cloudpickle", "multiprocessing.popen_forkserver", "helpers.launcher.rank", "helpers.reporting",
           "helpers.exercises.alone", "helpers.exercises.group", "helpers.instruments.collectives"]


def preload():
    """Import MODULES; return what failed, {name: reason}. multiprocessing itself would swallow an ImportError."""
    failed = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def outlive_the_kernel(session):
    """Have the server remove the session's files when the kernel is gone, however it went."""
    def clean_up():
        # The server ends here because the kernel did. Its ranks will end with it, but not what they have started.
        for group in Path(session).glob("run-*/group-*"):
            with contextlib.suppress(OSError):
                os.killpg(int(group.name.removeprefix("group-")), signal.SIGKILL)
        end = time.monotonic() + 5
        for folder in filter(None, (session, workarounds.server_socket_folder())):
            while os.path.exists(folder) and time.monotonic() < end:
                shutil.rmtree(folder, ignore_errors=True)
                time.sleep(0.01)
        os._exit(0)  # nothing is left to do: Python would take 2,000 modules apart, for a fifth of a second

    atexit.register(clean_up)


if server.SESSION in os.environ:
    # Jupyter interrupts and kills a kernel together with its process group. The server must not hear of the first, and
    # must survive the second, to clean up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    gc.disable()  # all that is imported stays: looking for garbage in it takes an eighth of the time
    failed = preload()
    workarounds.remember_entry_points()
    gc.freeze()  # the collector of a rank then never touches, and so never copies, the pages it shares with the server
    gc.enable()
    workarounds.gather_in_huge_pages()
    outlive_the_kernel(os.environ[server.SESSION])
    # The server sets its own, and leaves this one to ranks: interrupted before it is one, a rank ends without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        rank.write(Path(os.environ[server.SESSION], f"ready-{os.getpid()}"), json.dumps(failed).encode())
    except FileNotFoundError:  # the kernel has ended meanwhile, in good order, and has removed the folder
        os._exit(0)
