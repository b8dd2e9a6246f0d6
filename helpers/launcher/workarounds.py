"""Every private name and every trap that launching ranks has to work around, each with its finding.

Each has a test, in `tests/test_workarounds.py` or with what it serves, so that a new Python or torch that moves a name,
or no longer needs the workaround, is noticed there and not in a lesson. The kernel's side comes first, then the
server's, then the rank's.
"""

import atexit
import contextlib
import functools
import importlib.metadata
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import forkserver, process, util
from pathlib import Path

# ---------------------------------------------------------------------------------------------------- in the kernel


def server_pid():
    """The fork server's process id, or None while there is none.

    Finding: `multiprocessing` says neither whether its fork server runs nor which process it is, and a server that
    somebody else started first (without our preload) would silently be ours.
    """
    return forkserver._forkserver._forkserver_pid


def keep_socket_folder():
    """Make anew the folder in which multiprocessing puts its sockets, if somebody has removed it.

    Finding: multiprocessing makes it once per process and remembers its name for ever. A cleaner of old temporary
    files, or a fork server that ended by itself, removes it, and no fork server could be started any more.
    """
    folder = process.current_process()._config.get("tempdir")
    if folder is not None:
        os.makedirs(folder, mode=0o700, exist_ok=True)


@contextlib.contextmanager
def main_left_alone():
    """Keep new processes from importing the caller's `__main__`.

    Finding: both `spawn` and `forkserver` run the parent's main script again in every child, so that a plain script
    that calls `launch` without an `if __name__ == "__main__"` guard starts itself for ever. Our functions travel by
    value and need no main module.
    """
    main = sys.modules["__main__"].__dict__
    kept = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(kept)


@contextlib.contextmanager
def server_environment(**variables):
    """Give the fork server, while it starts, variables that the kernel itself must not keep.

    Finding: the server's environment is fixed at its start, and it is the only way in: on Python 3.11 the server
    ignores the `sys.path` that it is sent (python/cpython#117378), so even our own package needs PYTHONPATH.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update({name: before[name] for name in variables if name in before})


# --------------------------------------------------------------------------------------------------- in the server


def remember_entry_points():
    """Look the installed packages through for backends of torch's now, once, for all ranks to come.

    Finding: since 2.14, torch reads the metadata of every installed package each time a process group is made, to
    see whether one of them brings the backend: 15 ms of a launch that takes 50.
    """
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
    importlib.metadata.entry_points(group="torch.distributed.backends")


def gather_in_huge_pages():
    """Put what the server has allocated into huge pages, so that its page tables have few entries.

    Finding: a fork copies them, and a rank's end goes through them. Python asks the system for its memory itself and
    not through malloc (see `_QUIET` in `server.py`). Of 376 MB, 324 then lie in huge pages and not 135: two ranks that
    do nothing start and end in 20 ms, not 29, for 0.4 s of the server's start (Linux 6.1 and later; madvise(2)).
    """
    import ctypes

    MADV_COLLAPSE = 25
    madvise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError), open("/proc/self/maps") as regions:
        for line in regions.readlines():
            addresses, mode, _, _, inode, *_ = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            if (mode, inode) == ("rw-p", "0"):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def server_socket_folder():
    """The folder that was made for the socket on which the fork server listens, or None if none was.

    Finding: multiprocessing makes it in the temporary folder, and only a kernel that exits in good order removes it.
    """
    folder = os.path.dirname(forkserver._forkserver._forkserver_address)
    return folder if os.path.basename(folder).startswith("pymp-") else None


# ----------------------------------------------------------------------------------------------------- in the rank


def die_with(parent):
    """End this rank, whatever it is doing, as soon as process `parent` is gone.

    Finding: a rank inherits the writing end of the pipe by which the fork server notices that the kernel died. While
    any rank holds it, the server lives on, and a kernel killed with -9 leaves both behind. Closing it lets the server
    go, and prctl(2) PR_SET_PDEATHSIG takes the rank along, even one that waits in C++ with the GIL held.
    """
    server = forkserver._forkserver
    if getattr(server, "_forkserver_alive_fd", None) is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform != "linux":
        return
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def forget_start_method():
    """Let the learner's own processes start as they would under torchrun.

    Finding: multiprocessing makes the method by which a process was started the default for its children. In a rank, a
    DataLoader's workers would then start from a fork server, too: slowly, and not at all with a Dataset from a cell.
    """
    multiprocessing.set_start_method(None, force=True)


def forget_server_exit_functions():
    """Drop what the server's imports asked to be called at exit: it is the server's to call, once, not every rank's."""
    atexit._clear()


def run_exit_functions():
    """Call what the learner's code registered with `atexit`.

    Finding: a process made by a fork server ends in `os._exit`, which skips them; under torchrun they run, once all
    threads have ended that are not daemons.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    util._exit_function()  # multiprocessing's own: waits for children and for what queues still hold


def rendezvous_by_file(path):
    """Let `init_process_group()` meet the other ranks through files at `path`, not at MASTER_ADDR:MASTER_PORT.

    Finding: the TCPStore behind `env://` listens on every interface, and looks up its peer's name in reverse DNS,
    which cost 5 s in 7 of 100 launches (pytorch/pytorch#159007). A FileStore opens no port: 0 of 200. Each group that
    a script forms in turn gets a file of its own, since a store is good for one meeting only.
    """
    from torch.distributed import rendezvous

    handlers = sys.modules[rendezvous.__module__]._rendezvous_handlers
    meetings = itertools.count()

    def by_file(url, timeout=None, **_):
        from urllib.parse import parse_qs, urlparse

        # init_process_group(rank=…, world_size=…) puts its arguments into the URL.
        asked = {name: values[0] for name, values in parse_qs(urlparse(url).query).items()}
        rank = int(asked.get("rank") or os.environ["RANK"])
        world_size = int(asked.get("world_size") or os.environ["WORLD_SIZE"])
        meeting = f"{path}-{next(meetings)}"
        store = _store(meeting, world_size)
        if timeout is not None:
            store.set_timeout(timeout)
        try:
            yield store, rank, world_size
        finally:  # `init_process_group` drops this generator when it returns
            Path(f"{meeting}-{rank}").touch()
            _formed.append([Path(f"{meeting}-{other}") for other in range(world_size)])
            _stores.append(store)
        raise RuntimeError("these ranks have met already; they cannot meet again in the same group")

    handlers["env"] = by_file


_formed = []  # of each group that this rank has formed: the file of every rank that has, too
_stores = []  # that it has met the others by: its groups keep the C++ halves alive, and not Python's


def _store(path, world_size):
    """A FileStore that looks every 0.2 ms, at first, for what it waits for.

    Finding: torch's own sleeps for 10 ms between two looks, which was a third of a launch: 32 ms, and 23 with this
    (pytorch: torch/csrc/distributed/c10d/FileStore.cpp). Where there are GPUs, it is torch's: NCCL's watchdog asks the
    store from a thread, at any time, Python's end included.
    """
    from torch.cuda import device_count
    from torch.distributed import FileStore, Store

    file = FileStore(path, world_size)
    if device_count():
        return file

    class QuickFileStore(Store):
        def wait(self, keys, timeout=None):
            end = time.monotonic() + 0.05
            while not file.check(keys) and time.monotonic() < end:
                time.sleep(0.0002)
            file.wait(keys, timeout or self.timeout)

        def get(self, key):
            self.wait([key])
            return file.get(key)

    # What else C++ asks of it, by the names that it has there; pybind11 takes only Python functions for overrides.
    for there, here in {"set": "set", "add": "add", "check": "check", "compare_set": "compare_set", "clone": "clone",
                        "deleteKey": "delete_key", "getNumKeys": "num_keys"}.items():
        setattr(QuickFileStore, there, lambda _, *args, here=here: getattr(file, here)(*args))
    return QuickFileStore()


def stay_for_connecting_ranks(seconds=2.0):
    """Stay, when the work has failed, until all ranks have formed the group that this rank has formed last.

    Finding: as in `stay_for_late_ranks`. A slower rank printed the same words beside the error of the one that had
    failed: 18 of 300 launches with six busy loops beside them.
    """
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not all(map(Path.exists, _formed[-1] if _formed else [])):
        time.sleep(0.001)


def stay_for_late_ranks(meeting, ends, seconds=2.0):
    """Stay, once the work is done, until all ranks have ended theirs, but not for long.

    `meeting` is where they meet (see `rendezvous_by_file`). Of the files in `ends`, by rank, one is there when that
    rank is done.

    Finding: `init_process_group` returns as soon as this rank's own connections stand. A rank that ends right after it
    takes them along, and a slower one fails with "Gloo connectFullMesh failed … Connection closed by peer": seen on a
    busy machine, with ranks that form a group and have nothing to say to each other.
    """
    if not os.path.exists(f"{meeting}-0"):  # no group was formed
        return
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not all(any(map(os.path.exists, files)) for files in ends):
        time.sleep(0.001)


def keep_destroyed_groups():
    """Keep process groups alive after `destroy_process_group()`, until the rank ends.

    Finding: a DDP object that outlives its group owns the group's last reference. Freeing it joins gloo's threads
    while holding the GIL, and those threads may want the GIL: 8 of 20 runs hung at the end of a function; with the
    references kept, 0 of 140 (pytorch/pytorch#56297).
    """
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    destroy, kept = c10d.destroy_process_group, []

    def destroy_process_group(group=None):
        kept.extend(c10d._world.pg_map)
        return destroy(group)

    c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group
