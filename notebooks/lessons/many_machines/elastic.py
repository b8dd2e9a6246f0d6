"""Train the digits in a world of one rank or of two, with the same bits: the ranks share two data slots.

    torchrun --nnodes=1:2 --max-restarts=3 … elastic.py SNAPSHOT RUN        goes on where SNAPSHOT is
"""

import argparse
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from helpers.data import Digits

SLOTS = 2
STEPS = 40
EVERY = 10  # steps between two snapshots
HELD = 28  # after how many steps `--hold` waits


def save(state, path):
    with open(f"{path}.unfinished", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.unfinished", path)


def wait_to_be_watched(step, options):
    """After each step a moment; after step HELD until a node has been killed."""
    time.sleep(options.pause)
    while options.hold and step == HELD and not os.path.exists(options.hold):
        time.sleep(0.05)


def main(options):
    began = time.time()
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))  # a dead machine closes no connection
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = Digits(train=True).tensors()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    # Dropout draws from its slot's random numbers, whichever rank has the slot.
    random = {slot: torch.Generator().manual_seed(100 + slot).get_state() for slot in range(SLOTS)}
    first = 0
    if os.path.exists(options.snapshot):
        snapshot = torch.load(options.snapshot)
        if snapshot["run"] != options.run:
            raise SystemExit(f"{options.snapshot} is of run {snapshot['run']}, not of {options.run}")
        net.load_state_dict(snapshot["net"])
        optimizer.load_state_dict(snapshot["optimizer"])
        random = snapshot["random"]
        first = snapshot["step"]

    for step in range(first, STEPS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))
        shares = order[:64].chunk(SLOTS)
        optimizer.zero_grad()
        for slot in range(rank, SLOTS, world_size):  # two ranks: a slot each; one rank: both, one after the other
            torch.set_rng_state(random[slot])
            share = shares[slot]
            loss = nn.functional.cross_entropy(net(images[share]), labels[share]) / SLOTS
            loss.backward()  # gradients add up
            random[slot] = torch.get_rng_state()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print(json.dumps({"began": began, "time": time.time(), "world": world_size, "step": step + 1}))
        if (step + 1) % EVERY == 0:
            own = {slot: random[slot] for slot in range(rank, SLOTS, world_size)}
            by_rank = [None] * world_size
            dist.all_gather_object(by_rank, own)
            for states in by_rank:
                random.update(states)
            if rank == 0:
                save({"run": options.run, "step": step + 1, "net": net.state_dict(),
                      "optimizer": optimizer.state_dict(), "random": random}, options.snapshot)
        wait_to_be_watched(step + 1, options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot")
    parser.add_argument("run", help="whose snapshot it is; the same when the job is submitted anew")
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait after each step, to be watched")
    parser.add_argument("--hold", metavar="FILE", help=f"after step {HELD} wait until this file exists")
    main(parser.parse_args())
