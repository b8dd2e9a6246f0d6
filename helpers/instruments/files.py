"""Which files a process changes; who waits until that is done; what is left if it dies at any of these moments."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

_DIED = 9
_GROUP = ("barrier", "monitored_barrier", "allreduce", "broadcast", "allgather", "gather", "reduce", "recv")
_LOOK = 1 / 4096  # what a look at the disk counts, where a collective counts 1
_numbers = itertools.count()


@contextlib.contextmanager
def before_each_change(folder, do):
    """Within the block, call `do` just before this process writes, renames, links or removes a file in `folder`.

    `folder` is a disk of its own: what lies elsewhere cannot be renamed into it.
    Python's audit events tell, whichever function does it; and torch.save, which opens files where Python does not see.
    """
    save, active = torch.save, True

    def audit(event, args):
        changes = event in ("os.rename", "os.remove", "os.link", "os.symlink", "os.truncate") or (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))
        if active and changes and any(str(folder) in str(path) for path in args[:2]):
            do()

    def saving(obj, f, *args, **kwargs):  # names as torch has them: they may be given by name
        if str(folder) in str(f):
            do()
        return save(obj, f, *args, **kwargs)

    def renaming(rename):
        def renames(src, dst, **kwargs):
            if str(folder) in str(dst) and str(folder) not in str(src):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
            return rename(src, dst, **kwargs)

        return renames

    sys.addaudithook(audit)  # it cannot be taken away again
    try:
        with (mock.patch.object(torch, "save", saving), mock.patch.object(os, "rename", renaming(os.rename)),
              mock.patch.object(os, "replace", renaming(os.replace))):
            yield
    finally:
        active = False


@contextlib.contextmanager
def changed_last(folder):
    """Let rank 0 change files in `folder` only when the other ranks can but wait for it, or have left the block.

    So whoever does not wait leaves too early, on any machine. Each rank counts the collectives, messages and looks into
    a store to which it comes. Sleeping takes no time, for it is no way of waiting; 4,096 looks at the disk count as
    much as a collective. Rank 0 goes on after three seconds, for others may wait in a way that is not counted here.

    Yields:
        A list, which has an item for each change that this rank makes.
    """
    rank, changes, limit = int(os.environ["RANK"]), [], time.monotonic() + 3
    shared = f"{folder}-{next(_numbers)}"
    came = torch.from_file(shared, shared=True, size=int(os.environ["WORLD_SIZE"]), dtype=torch.float64)

    def change():
        changes.append(True)
        looks = 0
        while rank == 0 and looks < 3 and time.monotonic() < limit:
            looks = looks + 1 if came[1:].min() >= came[0] + 1 else 0
            time.sleep(0.01)

    def counted(function, step):
        def counts(*args, **kwargs):
            came[rank] += step
            return function(*args, **kwargs)

        return counts

    counting = [(dist.ProcessGroup, name, 1) for name in _GROUP] + [(dist.Store, "get", 1), (dist.Store, "wait", 1)]
    with contextlib.ExitStack() as patches:
        for owner, name, step in counting + [(os, "stat", _LOOK)] * (rank > 0):
            patches.enter_context(mock.patch.object(owner, name, counted(getattr(owner, name), step)))
        if rank > 0:
            patches.enter_context(_no_sleep(lambda function: counted(function, _LOOK)))
        patches.enter_context(before_each_change(folder, change))
        yield changes
    came[rank] = float("inf")


@contextlib.contextmanager
def _no_sleep(counted=lambda function: function):
    """Within the block, sleeping takes no time; `counted` makes of what does it what is called in its place."""
    wait = threading.Event.wait
    with (mock.patch.object(time, "sleep", counted(lambda seconds: None)),
          mock.patch.object(threading.Event, "wait", counted(
              lambda event, timeout=None: wait(event, timeout and 0)))):
        yield


def deaths(work, folder):
    """Have children of this process do `work()` and die: before each change of a file in `folder`, and halfway in it.

    Needs `os.fork`. "Halfway" is when a file is half as long as the longest in `folder`: one child is killed there, for
    another the disk is full. The last child lives, or is ended because it waits for ever.

    Yields:
        None, after each child; the files in `folder` are then as it left them, and are put back for the next.
    """
    before = {path: path.read_bytes() for path in Path(folder).iterdir()}
    for moment in range(50):
        for beyond in (signal.SIG_DFL, signal.SIG_IGN, None):  # kills; raises an OSError; is not forbidden
            for path in Path(folder).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path, content in before.items():
                path.write_bytes(content)
            child = os.fork()
            if child == 0:
                _die(work, folder, moment, max(map(len, before.values())) // 2, beyond)
            _, status = os.waitpid(child, 0)
            yield
        if status != _DIED << 8:
            return  # it lived to its end


def _die(work, folder, moment, longest, beyond):
    import resource

    changes = itertools.count()

    def change():
        if next(changes) == moment:
            if beyond is None:
                os._exit(_DIED)
            resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest))

    try:
        signal.alarm(3)
        signal.signal(signal.SIGXFSZ, beyond or signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for stream in (1, 2):  # or what is printed would grow a file, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        with before_each_change(folder, change), _no_sleep():  # each child would sleep once more
            work()
    finally:
        os._exit(0)
