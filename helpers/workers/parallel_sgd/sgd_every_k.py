"""Ranks train on their own shards and average their models every k steps.

Shards may be skewed by label.

    launch("sgd_every_k.py", nprocs=4, args=["--every", "8"])
    torchrun --nproc-per-node=4 sgd_every_k.py --every 8
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from helpers import report
from helpers.workers.parallel_sgd.task import LIMIT, batches, options, seed, skewed_split, tested


def average(model):
    """Make every rank's model the mean of all of them."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(weights)
    nn.utils.vector_to_parameters(weights / dist.get_world_size(), model.parameters())


def main(task, epochs, samples, every, skew):
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    torch.set_num_threads(1)  # the ranks share the cores
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = skewed_split(task.labels()[:samples], world_size, skew)
    images, labels = task.tensors(train=True, rows=shards[rank])
    test_set = task.tensors(train=False)
    steps = -(-min(map(len, shards)) // task.batch)  # the same number in every rank
    model = task.model()
    optimizer = task.optimizer(model)
    clock = 0.0
    for epoch in range(epochs):
        torch.manual_seed(seed(epoch, rank))
        dist.barrier()
        began = time.perf_counter()
        order = batches(len(labels), task.batch, epoch, rank)[:steps]
        for step, batch in enumerate(order, start=1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            if step == steps:  # before the last average
                own = tested(model, *test_set)[1] / len(test_set[1])
            if step % every == 0 or step == steps:
                average(model)
        clock += time.perf_counter() - began
        loss, right = tested(model, *test_set) / len(test_set[1])
        samples_seen = (epoch + 1) * sum(map(len, shards))
        report(epoch=epoch + 1, samples=samples_seen, seconds=clock,
               loss=loss, accuracy=right, own=own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**vars(options(__doc__, every=1, skew=0.0)))
