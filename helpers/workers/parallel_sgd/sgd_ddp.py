"""The same budget under DistributedDataParallel: gradients are averaged at every step.

    launch("sgd_ddp.py", nprocs=4), or torchrun --nproc-per-node=4 sgd_ddp.py
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers import report
from helpers.workers.parallel_sgd.task import LIMIT, batches, options, seed, split, tested


def main(task, epochs, samples):
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    torch.set_num_threads(1)  # the ranks share the cores
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = split(len(task.labels()) if samples is None else samples, world_size)
    rows = slice(shards[rank].start, shards[rank].stop)
    images, labels = task.tensors(train=True, rows=rows)
    test_set = task.tensors(train=False)
    steps = -(-min(map(len, shards)) // task.batch)
    model = DistributedDataParallel(task.model())
    optimizer = task.optimizer(model)
    clock = 0.0
    for epoch in range(epochs):
        torch.manual_seed(seed(epoch, rank))
        dist.barrier()
        began = time.perf_counter()
        for batch in batches(len(labels), task.batch, epoch, rank)[:steps]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # and here the ranks average their gradients
            optimizer.step()
        clock += time.perf_counter() - began
        loss, right = tested(model.module, *test_set) / len(test_set[1])
        samples_seen = (epoch + 1) * sum(map(len, shards))
        report(epoch=epoch + 1, samples=samples_seen, seconds=clock,
               loss=loss, accuracy=right)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**vars(options(__doc__)))
