"""The files of a run, by which its ranks and the notebook tell each other things; and the folder they lie in."""

import functools
import glob
import os
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path

#: The signal at which a rank writes down what it is doing: one that nobody else uses. macOS has only two.
SAY_WHAT_YOU_DO = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGUSR2", None)
#: Bytes that are set aside on the disk for each rank, for its failure when that is full.
RESERVED_BYTES = 32 * 2**10


class Files:
    """The files of one rank in its run's folder. A result or failure that is there is whole (`write`)."""

    def __init__(self, folder, rank):
        folder = Path(folder)
        self.log = folder / f"log-{rank}"  # stdout and stderr together, as they were written
        self.reports = folder / f"reports-{rank}"
        self.stack = folder / f"stack-{rank}"
        self.failure = folder / f"failure-{rank}"
        self.reserve = folder / f"reserve-{rank}"  # room for a failure that says that the disk is full
        self.result = folder / f"result-{rank}"
        self.question = folder / f"question-{rank}"
        self.answer = folder / f"answer-{rank}"
        self.torchs_failure = folder / f"error-{rank}.json"  # what torch's `@record` writes


def until(holds, seconds, pause=0.001):
    """Wait until `holds()`, but not for longer than that; return whether it does."""
    end = time.monotonic() + seconds
    while True:
        result = holds()
        if result or time.monotonic() >= end:
            return result
        time.sleep(pause)


def write(path, content):
    """Write a file of the run, whole or not at all."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # the disk is full: leave room for the failure that says so
        raise


def run_folder():
    """A new empty folder. It goes with the kernel; but where ranks are spawned, not after `kill -9`."""
    return Path(tempfile.mkdtemp(prefix=os.path.basename(beginning_of_folders())))


@functools.cache
def beginning_of_folders():
    """How the paths of all folders of this kernel begin, and no other's: a process id alone comes again."""
    return os.path.join(tempfile.gettempdir(), f"helpers-ranks-{os.getpid()}-{uuid.uuid4().hex[:8]}-")


def remove_folders(beginning):
    """Remove all folders whose paths begin so."""
    for folder in glob.glob(f"{glob.escape(beginning)}*"):
        shutil.rmtree(folder, ignore_errors=True)
