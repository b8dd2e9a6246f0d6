"""What does it cost to start a DataLoader worker, by start method? And to keep it?

    launch("worker_start.py", nprocs=1)
"""

import argparse
import multiprocessing
import os
import time

from torch.utils.data import DataLoader, Dataset

from helpers import report


class Nothing(Dataset):
    """Nothing to load: what an epoch costs is the worker. An item is its worker's process number."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return os.getpid()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", nargs="+", default=["fork", "spawn"])
    for method in parser.parse_args().methods:
        if method not in multiprocessing.get_all_start_methods():  # Windows has no fork
            continue
        for keep in (False, True):
            loader = DataLoader(Nothing(), batch_size=4, num_workers=1,
                                persistent_workers=keep, multiprocessing_context=method)
            seconds = []
            pids = set()
            for _ in range(2):
                began = time.perf_counter()
                for batch in loader:
                    pids.update(batch.tolist())
                seconds.append(time.perf_counter() - began)
            first, later = seconds
            report(method=method, persistent=keep, first=first, later=later, workers=len(pids), epochs=2)
