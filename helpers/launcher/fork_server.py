"""The fork server: a process that imports torch once and then only forks; so a rank starts in milliseconds.

`client.py` starts it and holds the other end of its socket, on which it first says what it could not import. Each
message to it asks for a rank, or says that a rank's run is over. One that asks carries a socket of the rank's own,
on which the server answers with the rank's process id and, later, with its exit code. When the kernel is gone,
however it went, the socket closes. The server then ends all ranks, removes their files, and ends.

It must import and do nothing else, and never initialise CUDA: after one multithreaded product in it, every
rank forked from it would hang in its own first one.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import select
import signal
import socket
import tempfile
import traceback
import weakref

# torch._dynamo, because the first optimizer that a rank makes imports 800 modules through it; what every rank
# needs; and what the ranks of a check need. Never a learner's module: an edit would not be seen.
MODULES = ["numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo",
           "helpers.launcher.rank", "helpers.launcher.processes", "helpers.reporting",
           "helpers.exercises.alone", "helpers.exercises.group", "helpers.instruments.collectives"]


def main(descriptor, beginning_of_folders):
    """Serve the kernel at the other end of socket `descriptor`; its folders start with `beginning_of_folders`."""
    kernel = socket.socket(fileno=descriptor)
    kernels_pid = os.getppid()
    prefix = f"{os.path.basename(beginning_of_folders)}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # which torch._dynamo makes when it is imported
        failed = import_all()
    ranks = Ranks()
    with contextlib.suppress(ConnectionError):  # the kernel has gone meanwhile
        kernel.send(json.dumps(failed).encode())
        _serve(kernel, kernels_pid, ranks)
    from helpers.launcher import files, processes

    processes.end_groups(ranks.leaders, ranks.running)
    files.until(lambda: os.getppid() != kernels_pid, 2)  # its descriptors close a moment before it is gone
    if os.getppid() != kernels_pid:  # else it lives, and has only lost this server
        files.remove_folders(beginning_of_folders)
    os._exit(0)  # nothing is left to do: Python would take 2,000 modules apart, for a fifth of a second


def import_all():
    """Import MODULES; return the first that failed and why, in words, or nothing."""
    gc.disable()  # all that is imported stays: looking for garbage in it takes an eighth of the time
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"import {name}: {type(error).__name__}: {error}"
    _look_up_backends_once()
    # The finalizers of what was imported need not run at a rank's exit: they would take 35 ms.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    # A rank's collector then touches, and so copies, no page that it shares with the server; and at its end
    # a rank finds what is its own among all objects (`ending`).
    gc.freeze()
    gc.enable()
    _gather_in_huge_pages()
    return ""


def _look_up_backends_once():
    """Since 2.14, torch looks for backends in all installed packages when a group is made: 15 ms a launch."""
    look_up = importlib.metadata.entry_points
    query_for_backends = {"group": "torch.distributed.backends"}
    backends = look_up(**query_for_backends)

    def entry_points(**query):
        return backends if query == query_for_backends else look_up(**query)

    importlib.metadata.entry_points = entry_points


def _gather_in_huge_pages():
    """Put what the server has allocated into huge pages: a fork then has few entries of page tables to copy.

    A launch of two ranks takes 37 ms, not 60; the server's start takes 0.4 s more (Linux 6.1; madvise(2)).
    """
    MADV_COLLAPSE = 25
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as regions:
        for line in regions.readlines():
            addresses, mode, _, _, inode, *_ = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            is_of_no_file = inode == "0"
            if mode == "rw-p" and is_of_no_file:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


class Ranks:
    """The ranks that this server has forked."""

    def __init__(self):
        self.connections = {}  # of those that run, by process id: the socket that waits for the exit code
        self.leaders = set()  # process ids of those whose run is not over: each leads a group of processes

    def add(self, pid, connection):
        self.connections[pid] = connection
        self.leaders.add(pid)
        _send_number(connection, pid)

    def running(self):
        """Tell the kernel the exit code of every rank that has ended (negative: a signal); return the others."""
        while self.connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with self.connections.pop(pid) as connection:
                _send_number(connection, os.waitstatus_to_exitcode(status))
        return self.connections.keys()


def _serve(kernel, kernels_pid, ranks):
    """Fork ranks and tell how they end, until the kernel is gone."""
    child_ended, signalled = socket.socketpair()
    signalled.setblocking(False)
    signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while os.getppid() == kernels_pid:  # its socket does not tell: a child of the kernel may hold it open
        ready, _, _ = select.select([kernel, child_ended], [], [], 1)
        if child_ended in ready:
            child_ended.recv(4096)
            ranks.running()
        if kernel in ready:
            message, descriptors, _, _ = socket.recv_fds(kernel, 65536, 1)
            if not message:
                return
            request = json.loads(message)
            if "over" in request:
                ranks.leaders.discard(request["over"])
            else:
                connection = socket.socket(fileno=descriptors[0])
                servers_own = [kernel, child_ended, signalled, connection, *ranks.connections.values()]
                ranks.add(_fork(request, servers_own), connection)


def _fork(request, servers_own):
    """Start one rank; return its process id. The rank itself never comes back from here."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()  # a process group of its own, which can be ended together with whatever the rank starts
    for servers_socket in servers_own:
        servers_socket.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Have the system kill this rank when the server dies, even while it waits in C++ (prctl(2)).
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        from helpers.launcher.rank import main as become_rank

        become_rank(request["folder"], request["rank"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # whatever has gone wrong, it must not go on as the server


def _send_number(connection, number):
    with contextlib.suppress(OSError):  # the launch was interrupted, and nobody listens any more
        connection.send(str(number).encode())
