"""A DataLoader worker dies of a signal: what does the training process say?

    launch("worker_killed.py", nprocs=1, args=["SIGBUS"])

SIGBUS is what the system sends when /dev/shm is full; SIGKILL, when memory is.
"""

import argparse
import multiprocessing
import os
import re
import signal
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Deadly(Dataset):
    """Its fifth item kills the worker that reads it."""

    def __init__(self, signal_name):
        self.signal = getattr(signal, signal_name)
        self.arrived = multiprocessing.Event()  # the items before it have

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 4:
            self.arrived.wait()
            os.kill(os.getpid(), self.signal)  # stands for the system
        return torch.tensor(index)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("signal", nargs="?", default="SIGBUS")
    loader = DataLoader(Deadly(parser.parse_args().signal), num_workers=1,
                        multiprocessing_context="fork" if sys.platform == "linux" else None)
    try:
        for number in loader:
            print("item", number.item(), flush=True)
            if number == 3:
                loader.dataset.arrived.set()
    except RuntimeError as error:
        # It comes at once, or as the cause of "exited unexpectedly", as the signal finds torch; process numbers differ.
        print("RuntimeError:", re.sub(r"\d+", "…", str(error.__cause__ or error)).strip())
