"""Train the digits. On SIGTERM all ranks save, in mid-epoch, and leave; started again, they go on from there.

    torchrun --nproc-per-node=2 preemptible.py snapshot.pt
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from train import save

from helpers.data import Digits

asked = False


def remember(number, frame):
    global asked
    asked = True  # nothing else: the signal may come in the middle of a collective


def asked_anywhere():
    flag = torch.tensor(int(asked))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)  # the same answer in all ranks


def main(path, *options):
    signal.signal(signal.SIGTERM, remember)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images, labels = Digits(train=True).tensors()
    sampler = DistributedSampler(labels)
    first = 0
    done = 0  # batches of this epoch
    if os.path.exists(path):
        snapshot = torch.load(path)
        net.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        torch.set_rng_state(snapshot["random"][rank])
        first, done = snapshot["place"]
        print(f"goes on in epoch {first}, after {done} batches")
    for epoch in range(first, 3):
        sampler.set_epoch(epoch)
        for batch in torch.tensor(list(sampler)).split(32)[done:]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            done += 1
            if "--warn-rank-1" in options and (rank, epoch, done) == (1, 1, 5):
                os.kill(os.getpid(), signal.SIGTERM)  # as a cluster would
            if asked_anywhere():
                print(f"saves in epoch {epoch}, after {done} batches; asked: {asked}")
                return snapshot_all(path, net, optimizer, (epoch, done))
        done = 0
    snapshot_all(path, net, optimizer, (3, 0))


def snapshot_all(path, net, optimizer, place):
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, torch.get_rng_state())
    if dist.get_rank() == 0:
        save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "random": random, "place": place}, path)
    dist.barrier()  # nobody leaves before the file is there


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
