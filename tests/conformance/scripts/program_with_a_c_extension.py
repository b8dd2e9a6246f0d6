"""A training that a C library meters: it writes a line for each step, and at the exit of C a summary."""
# needs: cc
import atexit
import ctypes
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Meter:
    """What a package around such a library looks like."""

    def __init__(self, path):
        self.library = ctypes.CDLL(os.path.abspath("libmeter.so"))
        self.library.meter_add.argtypes = [ctypes.c_double]
        self.library.meter_open(path.encode())
        atexit.register(self.report)
        self.steps = 0

    def add(self, value):
        self.library.meter_add(value)
        self.steps += 1

    def report(self):
        print("metered", self.steps, "steps")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    meter = Meter(f"meter-{dist.get_rank()}.txt")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        meter.add(step * (dist.get_rank() + 1.0))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
