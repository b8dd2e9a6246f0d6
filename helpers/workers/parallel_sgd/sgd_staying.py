"""The same training with ranks that stay: each prepares its shard once.

The ranks average among themselves.

    launch("sgd_staying.py", nprocs=4)
    torchrun --nproc-per-node=4 sgd_staying.py --task MNIST
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from helpers import report
from helpers.workers.parallel_sgd.task import LIMIT, batches, options, seed, split, tested


def train_epoch(rank, epoch, task, images, labels, model):
    """One pass over this rank's shard."""
    torch.manual_seed(seed(epoch, rank))
    optimizer = task.optimizer(model)  # a new one, as a new worker has
    for batch in batches(len(labels), task.batch, epoch, rank):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def average(model):
    """Make every rank's model the mean of all of them."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(weights)
    nn.utils.vector_to_parameters(weights / dist.get_world_size(), model.parameters())


def main(task, epochs, samples):
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    torch.set_num_threads(1)  # the ranks share the cores
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = split(len(task.labels()) if samples is None else samples, world_size)
    rows = slice(shards[rank].start, shards[rank].stop)
    images, labels = task.tensors(train=True, rows=rows)
    share = slice(rank, None, world_size)
    test_set = task.tensors(train=False, rows=share)
    model = task.model()
    for epoch in range(epochs):
        began = time.perf_counter()
        train_epoch(rank, epoch, task, images, labels, model)
        average(model)
        seconds = time.perf_counter() - began
        count = torch.tensor([float(len(test_set[1]))])
        sums = torch.cat([tested(model, *test_set), count])
        dist.all_reduce(sums)
        loss, right = sums[:2] / sums[2]
        if rank == 0:
            report(epoch=epoch + 1, loss=loss, accuracy=right, seconds=seconds)
            print(f"epoch {epoch + 1}: test loss {loss:.2f}, accuracy {right:.1%}")
    if rank == 0:
        weights = nn.utils.parameters_to_vector(model.parameters())
        report(weights=weights.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**vars(options(__doc__)))
