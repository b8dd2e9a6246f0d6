"""The files of one run, by which its ranks and the notebook tell each other things."""

import glob
import shutil
import time
from pathlib import Path


class Files:
    """The files of one rank in its run's folder. A result or failure that is there is whole (`write`)."""

    def __init__(self, folder, rank):
        folder = Path(folder)
        self.log = folder / f"log-{rank}"  # stdout and stderr together, as they were written
        self.reports = folder / f"reports-{rank}"
        self.stack = folder / f"stack-{rank}"
        self.failure = folder / f"failure-{rank}"
        self.result = folder / f"result-{rank}"
        self.question = folder / f"question-{rank}"
        self.answer = folder / f"answer-{rank}"
        self.torchs_failure = folder / f"error-{rank}.json"  # what torch's `@record` writes


def until(holds, seconds, pause=0.001):
    """Wait until `holds()`, but not for longer than that; return whether it does."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(pause)
    return held


def write(path, content):
    """Write a file of the run, whole or not at all."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # the disk is full: leave room for the failure that says so
        raise


def remove_folders(beginning):
    """Remove all folders whose paths begin so."""
    for folder in glob.glob(f"{glob.escape(beginning)}*"):
        shutil.rmtree(folder, ignore_errors=True)
