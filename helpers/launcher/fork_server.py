"""The fork server: a process that imports torch once and then only forks; so a rank starts in milliseconds.

`server.py` starts it and holds the other end of its socket. Each message on that socket asks for one rank. It
carries a socket of the rank's own, on which the server answers with the rank's process id and, later, with
its exit code. When the kernel is gone, however it went, the socket closes. The server then ends all ranks,
removes their files, and ends.

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


def main(descriptor, begin_of_folders):
    """Serve the kernel at the other end of socket `descriptor`; its folders start with `begin_of_folders`."""
    kernel, kernels_pid = socket.socket(fileno=descriptor), os.getppid()
    with tempfile.TemporaryDirectory(prefix=f"{os.path.basename(begin_of_folders)}{os.getpid()}-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # which torch._dynamo makes when it is imported
        failed = import_all()
    ranks, groups = {}, set()  # {process id: the rank's socket}; process ids of ranks whose run is not over
    with contextlib.suppress(ConnectionError):  # the kernel has gone meanwhile
        kernel.send(json.dumps(failed).encode())
        _serve(kernel, kernels_pid, ranks, groups)
    from helpers.launcher import files, processes

    processes.end_groups(groups, lambda: _tell_ends(ranks) or ranks)
    files.until(lambda: os.getppid() != kernels_pid, 2)  # its descriptors close a moment before it is gone
    if os.getppid() != kernels_pid:  # else it lives, and has only lost this server
        files.remove_folders(begin_of_folders)
    os._exit(0)  # nothing is left to do: Python would take 2,000 modules apart, for a fifth of a second


def import_all():
    """Import MODULES; return what failed, {name: reason}."""
    failed = {}
    gc.disable()  # all that is imported stays: looking for garbage in it takes an eighth of the time
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    # Since 2.14, torch looks for backends in all installed packages when a group is made: 15 ms a launch.
    look_up, asked = importlib.metadata.entry_points, {"group": "torch.distributed.backends"}
    found = look_up(**asked)
    importlib.metadata.entry_points = lambda **query: found if query == asked else look_up(**query)
    # The finalizers of what was imported need not run at a rank's exit: they would take 35 ms.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    gc.freeze()  # a rank's collector then touches, and so copies, no page that it shares with the server
    gc.enable()
    _gather_in_huge_pages()
    return failed


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
            if (mode, inode) == ("rw-p", "0"):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def _serve(kernel, kernels_pid, ranks, groups):
    """Fork ranks and tell how they end, until the kernel is gone."""
    child_ended, signalled = socket.socketpair()
    signalled.setblocking(False)
    signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while os.getppid() == kernels_pid:  # its socket does not tell: a child of the kernel may hold it open
        ready, _, _ = select.select([kernel, child_ended], [], [], 1)
        if child_ended in ready:
            child_ended.recv(4096)
            _tell_ends(ranks)
        if kernel in ready:
            message, descriptors, _, _ = socket.recv_fds(kernel, 65536, 1)
            if not message:
                return
            asked = json.loads(message)
            if "over" in asked:
                groups.discard(asked["over"])
                continue
            connection = socket.socket(fileno=descriptors[0])
            pid = _fork(asked, [kernel, child_ended, signalled, connection, *ranks.values()])
            ranks[pid] = connection
            groups.add(pid)
            _tell(connection, pid)


def _fork(asked, sockets):
    """Start one rank; return its process id. The rank itself never comes back from here."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()  # a process group of its own, which can be ended together with whatever the rank starts
    for one in sockets:
        one.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Have the system kill this rank when the server dies, even while it waits in C++ (prctl(2)).
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        from helpers.launcher import rank

        rank.main(asked["folder"], asked["rank"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # whatever has gone wrong, it must not go on as the server


def _tell_ends(ranks):
    """Tell the kernel the exit code of every rank that has ended: negative for a signal."""
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        connection = ranks.pop(pid)
        _tell(connection, os.waitstatus_to_exitcode(status))
        connection.close()


def _tell(connection, number):
    with contextlib.suppress(OSError):  # the launch was interrupted, and nobody listens any more
        connection.send(str(number).encode())
