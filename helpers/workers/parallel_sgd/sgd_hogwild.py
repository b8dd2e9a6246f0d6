"""Hogwild: all workers train one model in shared memory, each whenever it likes.

No lock, no average.

    launch("sgd_hogwild.py", nprocs=1), or python sgd_hogwild.py --task MNIST
"""

import sys
import time

import torch
import torch.multiprocessing as mp
from torch import nn

from helpers import report
from helpers.workers.parallel_sgd.task import LIMIT, batches, options, seed, split, tested


def train(rank, task, epochs, shards, model, barrier):
    """Train the shared model on this worker's shard; worker 0 also tests it."""
    torch.set_num_threads(1)  # the workers share the cores
    rows = slice(shards[rank].start, shards[rank].stop)
    images, labels = task.tensors(train=True, rows=rows)
    test_set = task.tensors(train=False)
    optimizer = task.optimizer(model)  # its momentum is the worker's own
    clock = 0.0
    for epoch in range(epochs):
        torch.manual_seed(seed(epoch, rank))
        barrier.wait(LIMIT)
        began = time.perf_counter()
        for batch in batches(len(labels), task.batch, epoch, rank):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()  # writes into the memory that the others read and write
        barrier.wait(LIMIT)
        clock += time.perf_counter() - began
        if rank == 0:
            loss, right = tested(model, *test_set) / len(test_set[1])
            samples_seen = (epoch + 1) * sum(map(len, shards))
            report(epoch=epoch + 1, samples=samples_seen, seconds=clock,
                   loss=loss, accuracy=right)


def main(task, epochs, samples, workers):
    torch.set_num_threads(1)  # no threads before a fork, as lesson 01 found
    shards = split(len(task.labels()) if samples is None else samples, workers)
    model = task.model().share_memory()
    method = "fork" if sys.platform == "linux" else "spawn"
    barrier = mp.get_context(method).Barrier(workers)
    args = task, epochs, shards, model, barrier
    mp.start_processes(train, args, nprocs=workers, start_method=method)


if __name__ == "__main__":
    main(**vars(options(__doc__, workers=4)))
