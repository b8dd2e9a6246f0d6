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
    """Nothing to load: what an epoch costs is the workers. An item is its worker's process number."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return os.getpid()


def epochs(loader, count):
    """Seconds of each epoch, and how many workers were started in all."""
    seconds, pids = [], set()
    for _ in range(count):
        began = time.perf_counter()
        pids |= {pid.item() for batch in loader for pid in batch}
        seconds.append(time.perf_counter() - began)
    return seconds, len(pids)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    known = multiprocessing.get_all_start_methods()  # Windows knows one
    parser.add_argument("--methods", nargs="+", default=known)
    parser.add_argument("--preload", nargs="*", default=[], help="what a fork server imports, once")
    options = parser.parse_args()
    multiprocessing.set_forkserver_preload(options.preload)
    for method in [method for method in options.methods if method in known]:
        for keep in (False, True):
            loader = DataLoader(Nothing(), batch_size=4, num_workers=1,
                                persistent_workers=keep, multiprocessing_context=method)
            count = 5 if keep else 2  # kept workers' epochs are short: the fastest of four is not another program's
            (first, *later), workers = epochs(loader, count)
            report(method=method, persistent=keep, first=first, later=min(later), workers=workers, epochs=count)
