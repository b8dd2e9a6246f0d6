"""A forked worker shares its parent's memory until it writes to it.

Reading a list of Python objects writes.

    launch("memory_of_lists.py", nprocs=1)
"""

import gc
import sys

import numpy as np
import psutil
from torch.utils.data import DataLoader, Dataset

from helpers import report

COUNT = 500_000


class Names(Dataset):
    """File names, in a list or in one array.

    A batch of them answers with the memory that the worker has for itself.
    """

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitems__(self, indices):  # a whole batch at once, which is quicker
        for index in indices:
            len(self.names[index])
        return [psutil.Process().memory_full_info().uss / 2**20]


def growth(names):
    """MiB that a worker's own memory grows by, from its first batch to its last."""
    method = "fork" if sys.platform == "linux" else None
    loader = DataLoader(Names(names), batch_size=COUNT // 10, num_workers=1,
                        collate_fn=list, multiprocessing_context=method)
    gc.collect()
    mib = [batch[0] for batch in loader]
    return mib[-1] - mib[0]


if __name__ == "__main__":
    names = [f"photos/2024/summer/{index:06}.jpg" for index in range(COUNT)]
    report(kind="list of str", mib=growth(names))
    report(kind="numpy array of bytes", mib=growth(np.array(names, dtype="S")))
