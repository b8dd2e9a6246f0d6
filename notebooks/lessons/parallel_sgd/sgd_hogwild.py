"""Hogwild: all workers train one model in shared memory, each whenever it likes.

    launch("sgd_hogwild.py", nprocs=1), or python sgd_hogwild.py --task MNIST
"""

import sys
import time

import torch
import torch.multiprocessing as mp

from helpers import report
from lessons.parallel_sgd.ranks import train_step
from lessons.parallel_sgd.shards import LIMIT, batches, labels_of, options, seed, split, tensors, tested

#: The quickest way to start workers. In a fork, shared memory stays shared.
START = "fork" if sys.platform == "linux" else "spawn"


def train(rank, task, epochs, shards, model, barrier):
    """Train the one model on this worker's shard; worker 0 also tests it."""
    torch.set_num_threads(1)  # the workers share the cores
    images, labels = tensors(task, rows=shards[rank])
    test_set = tensors(task, train=False)
    optimizer = task.optimizer(model)  # its momentum is the worker's own
    clock = 0.0
    for epoch in range(epochs):
        torch.manual_seed(seed(epoch, rank))
        barrier.wait(LIMIT)
        clock -= time.perf_counter()
        for batch in batches(len(labels), task.batch, epoch, rank):
            train_step(model, optimizer, images[batch], labels[batch])  # where the others read and write, too
        barrier.wait(LIMIT)
        clock += time.perf_counter()
        if rank == 0:
            loss, accuracy = tested(model, *test_set)
            report(epoch=epoch + 1, samples=(epoch + 1) * sum(map(len, shards)), seconds=clock,
                   loss=loss, accuracy=accuracy)


def main(task, epochs, samples, workers):
    torch.set_num_threads(1)  # a fork after torch has used threads could hang
    if samples is None:
        samples = len(labels_of(task))
    shards = split(samples, workers)
    model = task.model().share_memory()
    barrier = mp.get_context(START).Barrier(workers)
    mp.start_processes(train, (task, epochs, shards, model, barrier), nprocs=workers, start_method=START)


if __name__ == "__main__":
    main(**options(__doc__, workers=4))
