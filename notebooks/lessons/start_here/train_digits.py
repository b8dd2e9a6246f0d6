"""Train a small network on the shipped digits with DistributedDataParallel, on any number of ranks.

Run it: launch("train_digits.py", nprocs=2), or torchrun --nproc-per-node=2 train_digits.py.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from helpers import report
from helpers.data import Digits


def main(epochs, batch_size, width):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.set_num_threads(1)  # one core a rank, so that the times of one and of two compare
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    data = TensorDataset(*Digits(train=True).tensors())
    sampler = DistributedSampler(data)  # each rank sees its own share of the images
    loader = DataLoader(data, batch_size=batch_size // world_size, sampler=sampler)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # shuffle in another order in each epoch
        total, began = 0.0, time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # here the ranks average their gradients
            optimizer.step()
            total += loss.item()
        mean = total / len(loader)  # one step's loss depends on its few images
        report(epoch=epoch, loss=mean, steps=len(loader), seconds=time.perf_counter() - began)
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1} of {epochs}: mean loss {mean:.2f}")
    print(f"rank {rank} trained on {len(sampler)} of {len(data)} images, {len(loader)} steps an epoch")

    if rank == 0:
        images, labels = Digits(train=False).tensors()
        with torch.no_grad():  # `model` is for all ranks together, so rank 0 uses the network inside
            accuracy = (network(images).argmax(1) == labels).float().mean()
        print(f"test accuracy after {epochs} epochs on {world_size} rank(s): {accuracy:.2f}")
    dist.barrier()  # a rank that left now would close connections that others may still use
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, over all ranks together")
    parser.add_argument("--width", type=int, default=64, help="neurons between the two layers")
    options = parser.parse_args()
    main(options.epochs, options.batch_size, options.width)
