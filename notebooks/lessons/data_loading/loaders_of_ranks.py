"""The DataLoaders of all ranks: which workers, seeds and items has each? They know nothing of one another.

    launch("loaders_of_ranks.py", nprocs=2)
"""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, get_worker_info

from helpers import report


class Items(Dataset):
    """An item says which worker has read it: process number and seed."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return index, os.getpid(), get_worker_info().seed


def show(what, data, sampler=None, seed=0):
    torch.manual_seed(seed)  # the workers' seeds are drawn from this process's generator
    method = "fork" if sys.platform == "linux" else None
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=2, multiprocessing_context=method)
    batches = [torch.stack(batch) for batch in loader]
    items, pids, seeds = torch.cat(batches, dim=1).tolist()
    print(f"{what:17} {len(batches)} batches:", *items)
    report(what=what, items=items, pids=pids, seeds=seeds, batches=len(batches))


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    items = Items()
    every = DistributedSampler(items, world_size, rank, shuffle=False)
    fewer = DistributedSampler(items, world_size, rank, shuffle=False, drop_last=True)
    show("every second item", Subset(items, range(rank, len(items), world_size)))
    show("a sampler", items, every, seed=rank)
    show("drop_last=True", items, fewer, seed=rank)
