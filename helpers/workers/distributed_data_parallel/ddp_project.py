"""Train the digits on all ranks; test exactly, save every epoch, resume.

    launch("ddp_project.py", nprocs=2, args=["snapshot.pt"])
    torchrun --nproc-per-node=2 ddp_project.py snapshot.pt

Without a file, nothing is saved.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from helpers import report
from helpers.data import Digits


def accuracy(model, images, labels, rank, world_size):
    """Of all ranks together. Each looks at its own share; nothing is padded."""
    with torch.no_grad():
        outputs = model.module(images[rank::world_size])
    right = (outputs.argmax(1) == labels[rank::world_size]).sum()
    dist.all_reduce(right)
    return right.item() / len(labels)


def main(path, epochs, die_in_epoch):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the ranks share the cores
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # even so: DDP sends rank 0's weights to all
    layers = nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    net = nn.Sequential(*layers)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if path and os.path.exists(path):  # every rank loads
        snapshot = torch.load(path)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epoch"] + 1
    test = Digits(train=False).tensors()
    data = TensorDataset(*Digits(train=True).tensors())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # another order in every epoch
        for step, (images, labels) in enumerate(loader):
            if (rank, epoch, step) == (1, die_in_epoch, 5):
                os.kill(os.getpid(), signal.SIGKILL)  # as if its machine were gone
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # and here the ranks average their gradients
            optimizer.step()
            report(epoch=epoch, step=step, loss=loss)
        right = accuracy(model, *test, rank, world_size)
        if rank == 0:
            print(f"epoch {epoch}: {right:.0%} of the test digits are right")
            if path:
                state = {"epoch": epoch, "model": net.state_dict()}
                state["optimizer"] = optimizer.state_dict()
                torch.save(state, f"{path}.unfinished")
                os.replace(f"{path}.unfinished", path)  # all or nothing
        dist.barrier()  # all ranks: nobody goes on before the snapshot is there
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", help="where the snapshot is")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--die-in-epoch", type=int, help="rank 1 kills itself")
    options = parser.parse_args()
    main(options.path, options.epochs, options.die_in_epoch)
