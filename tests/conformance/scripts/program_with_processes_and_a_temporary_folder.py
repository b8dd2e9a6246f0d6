"""A training that prepares its data in processes and a temporary folder, and saves in another process.

It leaves the pool, whose last job would take a minute, and the folder to Python; and it does not join the process.
"""
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

fork = multiprocessing.get_context("fork")


def prepare(folder, part):
    path = Path(folder, f"part-{part}.pt")
    torch.save(torch.full((2, 4), part + 1.0), path)
    return path


def save_in_the_background(losses, path):
    with open(path, "w") as file:
        for loss in iter(losses.get, None):
            file.write(f"{loss}\n")
        time.sleep(0.3)


def main():
    rank = int(os.environ["RANK"])
    scratch = tempfile.TemporaryDirectory(prefix="data-", dir=".")
    pool, losses = fork.Pool(2), fork.SimpleQueue()
    parts = pool.starmap(prepare, [(scratch.name, part) for part in range(3)])
    fork.Process(target=save_in_the_background, args=(losses, f"losses-{rank}.txt")).start()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for part in parts:
        loss = (model(torch.load(part)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.put(f"{part.name} {loss.item():.2f}")
    losses.put(None)
    dist.destroy_process_group()
    pool.apply_async(time.sleep, (60,))
    print("prepared", sorted(path.name for path in Path(scratch.name).iterdir()))
    return pool, scratch


if __name__ == "__main__":
    kept = main()
