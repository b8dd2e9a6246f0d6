"""The published program: with neither bug, with each bug alone, and with both.

    launch("sgd_published.py", nprocs=1), or python sgd_published.py --task MNIST
"""

import torch
import torch.multiprocessing as mp

from helpers import report
from lessons.parallel_sgd.ranks import train_step
from lessons.parallel_sgd.sgd_hogwild import START
from lessons.parallel_sgd.sgd_respawned import aggregate, pull_down
from lessons.parallel_sgd.shards import batches, labels_of, options, seed, split, tensors, tested


def train_epoch(rank, epoch, task, shards, local_models):
    """One pass of a worker that is started for it, on images that are ready."""
    torch.set_num_threads(1)
    torch.manual_seed(seed(epoch, rank))
    model = local_models[rank]
    images, labels = shards[rank]
    optimizer = task.optimizer(model)
    for batch in batches(len(labels), task.batch, epoch, rank):
        train_step(model, optimizer, images[batch], labels[batch])


def pull_down_as_published(global_model, local_models):
    for model in local_models:
        for mine, its in zip(model.parameters(), global_model.parameters(), strict=True):
            mine.data = its.data


def train(pull_down, times, task, epochs, shards, test_set):
    """Yield the test loss and accuracy after each epoch."""
    global_model = task.model().share_memory()  # as spawn does with every tensor that it sends
    local_models = [task.model().share_memory() for _ in shards]
    for epoch in range(epochs):
        for _ in range(times):  # the published program: `for rank in range(n_workers)`, a second time
            pull_down(global_model, local_models)
            args = epoch, task, shards, local_models
            mp.start_processes(train_epoch, args, nprocs=len(shards), start_method=START)
        aggregate(global_model, local_models)
        yield tested(global_model, *test_set)


def main(task, epochs, samples, workers):
    torch.set_num_threads(1)  # a fork after torch has used threads could hang
    if samples is None:
        samples = len(labels_of(task))
    shards = [tensors(task, rows=rows) for rows in split(samples, workers)]
    test_set = tensors(task, train=False)
    for way in (pull_down, pull_down_as_published):
        for times in (1, workers):
            tests = train(way, times, task, epochs, shards, test_set)
            for epoch, (loss, accuracy) in enumerate(tests, start=1):
                report(pull_down=way.__name__, times=times, epoch=epoch, loss=loss, accuracy=accuracy)


if __name__ == "__main__":
    main(**options(__doc__, workers=4))
