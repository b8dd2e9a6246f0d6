"""The kernel's side of the fork server: start it, replace it when variables change, request ranks from it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from multiprocessing import connection
from pathlib import Path

from helpers.launcher.files import beginning_of_folders, remove_folders

#: How ranks start: a fork can crash where Apple's frameworks are loaded (macOS), and Windows has none.
START_METHOD = os.environ.get("COURSE_START_METHOD") or ("forkserver" if sys.platform == "linux" else "spawn")

#: What Python, torch and their libraries read once, at their start, begins with one of these. Where such a
#: variable has changed, ranks come from a new server, which costs a second or two.
READ_AT_START = ("PYTHON", "TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "ATEN_", "LD_", "MALLOC_")

OF_A_SERVER = "HELPERS_FORK_SERVER"  #: a variable that a server, and what it starts, has
# No library may start threads when the server imports it; nothing may initialise CUDA (see `fork_server.py`).
_SERVERS_OWN = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
                OF_A_SERVER: "1"}

_ROOT = str(Path(__file__).parents[2])
#: What a new Python runs before it can import this package: in place of the current folder, which PYTHONSAFEPATH
#: leaves out. Not where it finds the package anyway: its neighbours in site-packages must not come before Python's own.
#: The first entry, which `rank` replaces by the script's folder, is then the next one again.
FIND_THIS_PACKAGE = ("import sys; n = not sys.flags.safe_path; "
                     f"sys.path[:n] = sys.path[n:n + 1] if {_ROOT!r} in sys.path else [{_ROOT!r}]; ")

_current = None  # the Server
_lock = threading.RLock()  # held while a server is replaced, and while one is asked


class Server:
    """One fork server, which has been started in `environment`."""

    def __init__(self, environment):
        import fcntl  # here, because Windows, which has no fork server, does not have it

        self.variables = _read_at_start(environment)
        self.ready = False
        self.ranks = set()  # process ids of those whose run is not over
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Where the kernel has closed its standard streams, a socket may have got one of their numbers.
            descriptor = fcntl.fcntl(theirs, fcntl.F_DUPFD, 3)
        arguments = f"{descriptor}, {beginning_of_folders()!r}"
        main = f"from helpers.launcher import fork_server; fork_server.main({arguments})"
        try:
            # A session of its own: Jupyter interrupts and kills a kernel together with its process group. The
            # server must not hear of the first, and must survive the second, to clean up.
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", FIND_THIS_PACKAGE + main], env={**environment, **_SERVERS_OWN},
                pass_fds=[descriptor], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finally:
            os.close(descriptor)

    def wait_for_imports(self, seconds):
        """Wait until the server has imported torch."""
        if self.ready:
            return
        message = self.socket.recv(65536) if connection.wait([self.socket], seconds) else b""
        if not message:
            raise RuntimeError("the fork server has died, or has not imported torch after "
                               f"{seconds:g} s; try `python -c 'import torch'` in a terminal, "
                               "then restart the kernel")
        failed = json.loads(message)
        if failed:
            raise RuntimeError(f"ranks cannot start, because this fails in a fresh Python process: {failed}")
        self.ready = True

    def fork(self, folder, rank):
        """Have a rank started; return its process id, and the socket on which its exit code will come."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps({"folder": str(folder), "rank": rank})
            socket.send_fds(self.socket, [request.encode()], [theirs.fileno()])
        pid = ours.recv(64)
        if not pid:
            raise ConnectionResetError("the fork server has died")
        self.ranks.add(int(pid))
        return int(pid), ours

    def forget(self, pid):
        """Have the server forget a rank that has ended: another process may soon have its number."""
        self.ranks.discard(pid)
        if self is not _current and not self.ranks:
            self.kill()  # another server has taken its place, and only its ranks still needed it
            return
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps({"over": pid}).encode())

    def kill(self):
        """End it at once, and its ranks with it."""
        self.process.kill()
        self.process.wait()
        self.socket.close()
        remove_folders(f"{beginning_of_folders()}{self.process.pid}-")  # it was still importing


def start(environment=None):
    """Return the fork server for this environment (default: the kernel's); it may still import torch."""
    global _current
    environment = os.environ if environment is None else environment
    with _lock:
        runs = _current is not None and _current.process.poll() is None
        if runs and _current.variables == _read_at_start(environment):
            return _current
        still_needed = runs and _current.ranks  # by another launch
        if _current is not None and not still_needed:
            _current.kill()
        _current = Server(environment)
        return _current


def wait_until_ready(environment=None, seconds=120):
    """Return a fork server that has imported torch (else RuntimeError); None where ranks are spawned."""
    if START_METHOD != "forkserver":
        return None
    with _lock:
        server = start(environment)
        try:
            server.wait_for_imports(seconds)
        except RuntimeError:
            server.kill()
            raise
        return server


def request_rank(folder, rank, environment):
    """Have a rank started; return its server, its process id, and the socket on which its exit code will come."""
    with _lock:
        server = wait_until_ready(environment)
        return server, *server.fork(folder, rank)


def _read_at_start(environment):
    own = {*_SERVERS_OWN, "TORCHINDUCTOR_CACHE_DIR"}
    return {name: value for name, value in environment.items()
            if name.startswith(READ_AT_START) and name not in own}
