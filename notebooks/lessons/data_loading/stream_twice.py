"""Ten items, read by DataLoader workers in every rank: how often does each arrive?

    launch("stream_twice.py", nprocs=2, args=["--workers", "2"])
"""

import argparse
import sys

from torch.utils.data import DataLoader, IterableDataset

from helpers import report


class Stream(IterableDataset):
    """Items that come one after another, as from a socket, a log or a large archive."""

    def __iter__(self):
        yield from range(10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    method = "fork" if workers and sys.platform == "linux" else None
    loader = DataLoader(Stream(), batch_size=5, num_workers=workers,
                        multiprocessing_context=method)
    items = []
    for batch in loader:
        items += batch.tolist()
    print("it reads", *items)
    report(items=items)
