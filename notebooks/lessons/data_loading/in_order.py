"""A disk stalls for two of its batches: does the loader hand them over in order, or as they come?

    launch("in_order.py", nprocs=1)
"""

import sys
import time
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from helpers import report

# More workers than cores: they sleep.
warnings.filterwarnings("ignore", message="This DataLoader will create")


class Disk(Dataset):
    """Every batch takes 20 ms; batches 1 and 6 take longer."""

    def __init__(self, stall_ms):
        self.stall_ms = stall_ms

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep((20 + self.stall_ms * (index in (1, 6))) / 1000)
        return index, torch.randn(4, 8, generator=torch.Generator().manual_seed(index))


def train(in_order, stall_ms):
    torch.manual_seed(0)  # the same beginning, each time
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = "fork" if sys.platform == "linux" else None
    loader = DataLoader(Disk(stall_ms), batch_size=None, num_workers=4, prefetch_factor=1, in_order=in_order,
                        multiprocessing_context=method)
    order = []
    arrived = []
    for index, images in loader:
        order.append(index)
        arrived.append(time.perf_counter())
        loss = (model(images) - images.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.008)  # a device that is busy for so long
    ms = (arrived[-1] - arrived[0]) * 1000  # the workers' start is another matter
    report(in_order=in_order, stall_ms=stall_ms, order=order, ms=ms, weights=model.weight.flatten().tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for in_order in (True, False):
        for stall_ms in (300, 0):
            train(in_order, stall_ms)
