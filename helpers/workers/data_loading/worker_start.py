"""What does it cost to start a DataLoader worker, by start method? And to keep it?

    launch("worker_start.py", nprocs=1)
"""

import argparse
import multiprocessing
import time

import torch
from torch.utils.data import DataLoader, Dataset

from helpers import report


class Numbers(Dataset):
    """Nothing to load: what an epoch costs is the workers."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor(index)


def epochs(loader, count=2):
    """Seconds of each epoch."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    methods = multiprocessing.get_all_start_methods()
    parser.add_argument("--methods", nargs="+", default=methods)
    multiprocessing.set_forkserver_preload(["torch"])
    for method in parser.parse_args().methods:
        for keep in (False, True):
            loader = DataLoader(Numbers(), batch_size=4, num_workers=1,
                                persistent_workers=keep, multiprocessing_context=method)
            first, second = epochs(loader)
            report(method=method, persistent=keep, first=first, second=second)
