"""The article's synchronous SGD: start workers, wait for them, average their models, test.

    launch("sgd_respawned.py", nprocs=1), or python sgd_respawned.py --task MNIST
"""

import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Subset

from helpers import report
from helpers.data import load
from lessons.parallel_sgd.ranks import one_pass
from lessons.parallel_sgd.shards import LIMIT, batches, options, seed, split, tensors, tested, transform


class CustomSubset(Subset):
    """A worker's shard, with a transform of its own."""

    def __init__(self, dataset, indices, transform):
        super().__init__(dataset, indices)
        self.transform = transform

    def __getitem__(self, index):
        image, label = self.dataset[self.indices[index]]
        return self.transform(image), label

    def __getitems__(self, indices):  # today's Subset asks for it
        return [self[index] for index in indices]


def train_epoch(rank, epoch, task, shards, local_models, barrier, inside, threads):
    """Make one pass over this worker's shard."""
    torch.set_num_threads(threads)  # otherwise every worker takes all cores
    torch.manual_seed(seed(epoch, rank))
    model = local_models[rank]
    shard = shards[rank]
    order = batches(len(shard), task.batch, epoch, rank)
    loader = DataLoader(shard, batch_sampler=[batch.tolist() for batch in order])
    optimizer = task.optimizer(model)
    barrier.wait(LIMIT)  # all have started
    began = time.perf_counter()
    one_pass(model, optimizer, loader)
    barrier.wait(LIMIT)  # all have trained
    inside[rank] = time.perf_counter() - began


def pull_down(global_model, local_models):
    """Copy the global weights into every local model."""
    for model in local_models:
        model.load_state_dict(global_model.state_dict())


def one_epoch(global_model, local_models, args):
    pull_down(global_model, local_models)
    mp.spawn(train_epoch, args, nprocs=len(local_models))  # returns when all workers have ended
    aggregate(global_model, local_models)


def aggregate(global_model, local_models):
    """Make the global model the mean of the local ones."""
    states = [model.state_dict() for model in local_models]
    means = {}
    for name in states[0]:
        means[name] = torch.stack([state[name] for state in states]).mean(0)
    global_model.load_state_dict(means)


def main(task, epochs, samples, workers, threads):
    dataset = load(task.dataset)
    test_set = tensors(task, train=False)
    if samples is None:
        samples = len(dataset)
    shards = [CustomSubset(dataset, indices, transform(task)) for indices in split(samples, workers)]
    global_model = task.model()
    local_models = [task.model().share_memory() for _ in range(workers)]
    barrier = mp.get_context("spawn").Barrier(workers)
    inside = torch.zeros(workers).share_memory_()  # the seconds that each worker trains, without its start
    for epoch in range(epochs):
        began = time.perf_counter()
        one_epoch(global_model, local_models, (epoch, task, shards, local_models, barrier, inside, threads))
        seconds = time.perf_counter() - began
        loss, accuracy = tested(global_model, *test_set)
        report(epoch=epoch + 1, loss=loss, accuracy=accuracy, seconds=seconds, inside=inside.max())
        print(f"epoch {epoch + 1}: test loss {loss:.2f}, accuracy {accuracy:.1%}")
    report(weights=nn.utils.parameters_to_vector(global_model.parameters()).tolist())


if __name__ == "__main__":
    main(**options(__doc__, workers=4, threads=1))
