"""What lies on the disk when rank 0 dies while it saves, when the disk is full or the power fails, and in the end."""

import contextlib
import errno
import functools
import inspect
import io
import os
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from helpers.exercises.group import InGroup
from helpers.exercises.in_rank import scratch

try:
    import resource
except ImportError:  # Windows: no disk is full there
    resource = None

_CHANGES = "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate"
#: Bytes that a file may have on a full disk: a third of a snapshot.
_FULL = 100_000
#: Seconds of computing, not of the clock: on a busy machine, the other ranks have had their share meanwhile.
_HOLD = 0.1


def snapshot(number):
    weights = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(number))
    model = {"weight": weights, "seen": torch.tensor(number)}
    optimizer = {"state": {0: {"momentum_buffer": weights / 2}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"epoch": number, "random": torch.arange(number), "model": model, "optimizer": optimizer}


def what_is_at(path):
    """What there is, in words; "snapshot 2" is a whole one."""
    if not os.path.exists(path):
        return "no snapshot at all: no file at `path`"
    try:
        saved = torch.load(path)
    except Exception:
        return "half a file, or another that `torch.load` cannot read"
    for number in (1, 2, 3, 4):
        if is_snapshot(saved, number):
            return f"snapshot {number}"
    return "something else than `state`, or not all of it"


def is_snapshot(state, number):
    with contextlib.suppress(AssertionError, TypeError, ValueError):
        torch.testing.assert_close(state, snapshot(number), rtol=0, atol=0)
        return True
    return False


@contextlib.contextmanager
def _before_each_change(folder, do):
    """In the block, call `do(event, args)` before this process writes, renames, links or removes a file in `folder`.

    `folder` is a disk of its own: what lies elsewhere cannot be renamed into it. Sleeping takes no time, for
    it is no way of waiting.
    """
    save = torch.save
    wait = threading.Event.wait
    watching = True

    def audit(event, args):
        if not watching or not any(folder in str(path) for path in args[:2]):
            return
        if event == "os.rename" and folder not in str(args[0]):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), *args[:2])
        opened = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if opened or event in _CHANGES:
            do(event, args)

    def saving(*args, **kwargs):  # torch opens files where Python does not see it
        do("torch.save", args)
        return save(*args, **kwargs)

    sys.addaudithook(audit)  # it cannot be taken away again
    try:
        with (mock.patch.object(torch, "save", saving),
              mock.patch.object(time, "sleep", lambda seconds: None),
              mock.patch.object(threading.Event, "wait",
                                lambda event, timeout=None: wait(event, timeout and 0))):
            yield
    finally:
        watching = False


@contextlib.contextmanager
def _known_on_the_disk(save):
    """Yields a function: has a file all its bytes on the disk, because `save` has waited for them in the block?"""
    lengths = {}  # of the files that were waited for, by number
    fsync = os.fsync
    all_there = False

    def waited_for(file):
        fsync(file)
        state = os.fstat(file if isinstance(file, int) else file.fileno())
        lengths[state.st_ino] = state.st_size

    def waited_for_all():
        nonlocal all_there
        all_there = True

    def is_on_the_disk(path):
        try:
            state = os.stat(path)
        except OSError:
            return True  # that it is gone is for the renaming itself to say
        return all_there or lengths.get(state.st_ino) == state.st_size

    own = inspect.unwrap(save).__globals__  # which may hold the functions themselves
    imported = {name: waited_for for name, value in own.items() if value in (os.fsync, os.fdatasync)}
    with (mock.patch.dict(own, imported), mock.patch.object(os, "fsync", waited_for),
          mock.patch.object(os, "fdatasync", waited_for), mock.patch.object(os, "sync", waited_for_all)):
        yield is_on_the_disk


def left_by_a_crash(save):
    """What `path` holds, but snapshot 3 or 4, when `save(snapshot 4, path)` is cut off anywhere; or None."""
    alone, _ = dist.new_subgroups(1)
    world = dist.group.WORLD
    if dist.get_rank() > 0:
        return None
    dist.group.WORLD = alone  # whose collectives wait for nobody
    try:
        for before in (snapshot(3), None):
            undisturbed = _seen(save, before, None)
            whole = undisturbed[0], undisturbed[-1]
            for full_from in range(len(undisturbed)):
                for what in undisturbed + _seen(save, before, full_from):
                    if what not in whole:
                        return what
    finally:
        dist.group.WORLD = world
    return None


def _seen(save, before, full_from):
    """What is found before each change, and at the end; from the change `full_from` on, the disk is full."""
    seen = []

    def change(event, args):
        seen.append(what_is_at(path))
        if len(seen) == full_from:
            _limit_files(_FULL)

    with scratch() as folder:
        path = f"{folder}/snapshot.pt"
        if before:
            torch.save(before, path)
        with _before_each_change(folder, change), contextlib.redirect_stdout(io.StringIO()):
            if full_from == 0:
                _limit_files(_FULL)
            with contextlib.suppress(Exception):
                save(snapshot(4), path)
            _limit_files(None)
        return [*seen, what_is_at(path)]


def _limit_files(size):
    if resource:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size or most, most))


class Saving(InGroup):
    """Exercises whose answer saves.

    The function that `observe` is handed has an attribute `calls`: for each call, what was at `path` when it returned
    in this rank, in words, how many changes of files this rank had made, and whether a file was given the name `path`
    before all its bytes were on the disk. Rank 0 changes a file only when the others have returned, or have had time
    enough to.
    """

    @classmethod
    def run(cls, answer, case, slowly):
        rank = int(os.environ["RANK"])

        @functools.wraps(answer)
        def watched(state, path):
            folder = os.path.dirname(path)
            returned = Path(f"{folder}-returned-{len(watched.calls)}")  # there once another rank has returned
            changes = 0
            too_early = False

            def change(event, args):
                nonlocal changes, too_early
                changes += 1
                if event in ("os.rename", "os.link") and str(args[1]) == path:
                    too_early = too_early or not is_on_the_disk(args[0])
                until = time.process_time() + _HOLD
                while rank == 0 and not returned.exists() and time.process_time() < until:
                    pass

            with _known_on_the_disk(answer) as is_on_the_disk, _before_each_change(folder, change):
                answer(state, path)
            watched.calls.append((what_is_at(path), changes, too_early))
            if rank > 0:
                returned.touch()

        watched.calls = []
        return super().run(watched, case, slowly)
