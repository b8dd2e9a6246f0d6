"""Two loader workers in each rank: what random numbers do their samples get?

    launch("loaders.py", nprocs=2, args=["--seed-by-rank"])
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from helpers import report


class Augmented(Dataset):
    """Each sample is a random number, as an augmentation draws it, and the process that drew it."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(1).item(), os.getpid()


def main(seed_by_rank):
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank() if seed_by_rank else 0)
    samples = list(DataLoader(Augmented(), batch_size=None, num_workers=2))
    report(numbers=[round(number, 3) for number, _ in samples], workers=sorted({process for _, process in samples}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed-by-rank", action="store_true")
    main(parser.parse_args().seed_by_rank)
