"""The fork server: a process that imports torch once and then only forks, so that ranks start in milliseconds."""

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

from helpers.launcher import workarounds

#: How ranks start: COURSE_START_METHOD, or a fork server where that is safe. macOS has one too, but forking a process
#: that holds Apple's frameworks can crash it; there, and on Windows, every rank imports torch itself.
START_METHOD = os.environ.get("COURSE_START_METHOD") or ("forkserver" if sys.platform == "linux" else "spawn")

#: Names the session's folder to the server, which removes it when the kernel can no longer do so itself.
SESSION = "HELPERS_SESSION"

# The server must import and nothing else: one multithreaded product in it, and every rank forked from it hangs in its
# own first one. So no library may start threads while it is imported. And it must never initialise CUDA.
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Half of a fork, and of a rank's end, goes into the page tables of what torch's import has allocated. Huge pages
    # have few entries: 2.3 ms in the place of 4.1 (glibc 2.35 and later; others do not know the name).
    "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
}

_started = set()  # process ids of the servers that we have started
_ready = set()  # process ids of servers that have been seen ready

#: Held while a server or a rank is started: both depend on os.environ and __main__, which threads share.
lock = threading.RLock()


def start():
    """Start the fork server unless it runs; do not wait for its imports.

    Returns:
        The server's process id; None where ranks are spawned, and where somebody else's fork server runs already.

    Raises:
        OSError: there is no folder to write to, or no process could be started.
    """
    if START_METHOD != "forkserver":
        return None
    with lock:
        before = workarounds.server_pid()
        if before is not None and before not in _started:
            forkserver.ensure_running()
            return None  # theirs: ranks start there as well, but each has to import torch again
        with ours():
            forkserver.ensure_running()
        return workarounds.server_pid()


@contextlib.contextmanager
def ours():
    """See to it that a fork server that is started within the block is ours: it imports torch, and cleans up.

    Whoever starts a process starts a server, too, if the last one has died by then.
    """
    if START_METHOD != "forkserver":
        yield
        return
    before = workarounds.server_pid()
    folder = _session_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    workarounds.keep_socket_folder()
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Importing torch._dynamo makes torch's cache folder; the server's is not worth keeping.
    own = {SESSION: str(folder), "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor")}
    with workarounds.server_environment(**_QUIET, **own):
        multiprocessing.set_forkserver_preload(["helpers.launcher.preload"])
        try:
            yield
        finally:
            if workarounds.server_pid() != before:
                _started.add(workarounds.server_pid())


def wait_until_ready(seconds=120):
    """Wait until the server has imported torch, the first time; later calls find it ready and cost nothing.

    Raises:
        RuntimeError: the server could not import torch, died again and again, or is not ready after `seconds`.
    """
    end, deaths = time.monotonic() + seconds, 0
    pid = start()
    while pid is not None and pid not in _ready:
        sign = _session_folder() / f"ready-{pid}"
        if sign.exists():
            failed = json.loads(sign.read_text())
            if failed:
                raise RuntimeError("ranks cannot start, because this fails in a fresh Python process: "
                                   + "; ".join(f"import {name}: {why}" for name, why in failed.items()))
            _ready.add(pid)
            return
        if time.monotonic() > end:
            raise RuntimeError(f"the fork server has not imported torch after {seconds:g} s; is the disk very busy? "
                               "Restart the kernel, and try `python -c 'import torch'` in a terminal.")
        time.sleep(0.01)
        before, pid = pid, start()
        deaths += pid != before
        if deaths > 3:
            raise RuntimeError("the fork server dies while it imports torch; try `python -c 'import torch'` in a "
                               "terminal (is there enough memory?), then restart the kernel")


def replace():
    """Put a new fork server in the place of one that does not answer, and wait until it is ready."""
    pid = workarounds.server_pid()
    if pid in _started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _ready.discard(pid)
        (_session_folder() / f"ready-{pid}").unlink(missing_ok=True)  # it may take a moment until it is seen to be dead
    wait_until_ready()


def run_folder():
    """A new empty folder for one run, removed with the session, or by its own ranks, at the latest.

    Raises:
        OSError: the temporary folder cannot be written.
    """
    if START_METHOD != "forkserver":  # no server would remove a session's folder when the kernel is killed
        return Path(tempfile.mkdtemp(prefix="helpers-ranks-"))
    session = _session_folder()
    session.mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=session))


@functools.cache
def _session_folder():
    folder = Path(tempfile.mkdtemp(prefix="helpers-ranks-"))
    atexit.register(_remove_in, os.getpid(), folder)
    return folder


def _remove_in(pid, folder):
    if os.getpid() == pid:  # a child forked from the kernel must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)
