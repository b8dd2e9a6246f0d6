"""Random numbers drawn in DataLoader workers: which repeat, by worker and by epoch?

    launch("worker_seeds.py", nprocs=1)
"""

import random
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from helpers import report


class Draws(Dataset):
    """An item is one random number from each source: an augmentation, in small."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"random": random.random(), "torch": torch.rand(()).item(),
                "numpy": np.random.rand(),
                "a generator in the dataset": self.generator.random()}


def own_generator(worker_id):
    """Runs in each worker as it starts; its `seed` is another one each time."""
    info = get_worker_info()
    info.dataset.generator = np.random.default_rng(info.seed)


def draws(worker_init_fn):
    """{source: numbers}; one draw by each of two workers in each of two epochs."""
    torch.manual_seed(0)  # the workers' seeds are drawn from this process's generator
    method = "fork" if sys.platform == "linux" else None
    loader = DataLoader(Draws(), num_workers=2, worker_init_fn=worker_init_fn, multiprocessing_context=method)
    numbers = {}
    for _ in range(2):
        for item in loader:
            for source, number in item.items():
                numbers.setdefault(source, []).append(number.item())
    return numbers


if __name__ == "__main__":
    plain = draws(None)
    cured = draws(own_generator)
    plain["the same, with worker_init_fn"] = cured["a generator in the dataset"]
    for source, numbers in plain.items():
        different = len(set(numbers))
        print(f"{source:31} {different} different numbers in {len(numbers)} draws")
    report(**{source.replace(" ", "_"): numbers for source, numbers in plain.items()})
