"""Two ranks learn to read digits, far too slowly: profiling hunts five things that waste their time.

    launch("slow_training.py", nprocs=2), or torchrun --nproc-per-node=2 slow_training.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from helpers.data import Digits


class Log:
    """A log on a network drive: what was written is safe after `flush`, which takes time (here, a sleep)."""

    def __init__(self):
        self.lines = []
        self.safe = []

    def write(self, line):
        self.lines.append(line)

    def flush(self):
        time.sleep(0.008)
        self.safe = self.safe + self.lines
        self.lines = []


def digits(rank, world_size, count, train=True):
    """This rank's digits, enlarged to 48×48: images as a NumPy array of float64, labels as a tensor."""
    data = Digits(train=train)
    mine = slice(rank, count * world_size, world_size)
    images = data.data[mine].repeat_interleave(6, 1).repeat_interleave(6, 2)
    return images.double().numpy(), data.targets[mine]


def network():
    """A small network for 48×48 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(48 * 48, 64), nn.ReLU(), nn.Linear(64, 10))


def normalised(image):
    """Each row of one image, without its mean."""
    return torch.stack([(row - row.mean()) / 64 for row in image])


def train(model, images, labels, epochs, log):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for start in range(0, len(images), 32):
            optimizer.zero_grad()
            for i in range(start, start + 32, 4):  # in small pieces, to save memory
                pixels = torch.tensor(images, dtype=torch.float32)
                batch = torch.stack([normalised(image) for image in pixels[i:i + 4]])
                loss = nn.functional.cross_entropy(model(batch), labels[i:i + 4]) / 8
                loss.backward()
            optimizer.step()
            states = [None] * dist.get_world_size()
            dist.all_gather_object(states, model.state_dict())  # still equal?
            log.write(f"epoch {epoch}: loss {8 * loss.item():.4f}")
            log.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=160, help="for each rank; a multiple of 32")
    parser.add_argument("--trace", help="a folder: write a trace there, one file per rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    images, labels = digits(rank, world_size, options.images)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        train(model, images, labels, options.epochs, Log())
    if options.trace:
        prof.export_chrome_trace(f"{options.trace}/rank{rank}.json")
    dist.barrier()
    dist.destroy_process_group()
