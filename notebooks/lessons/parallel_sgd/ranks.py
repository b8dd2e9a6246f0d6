"""What the trainers in ranks share: join the others, take a shard, train and test in every epoch, leave."""

import copy
import math
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from helpers import report
from lessons.parallel_sgd.shards import LIMIT, batches, labels_of, seed, skewed_split, tensors, tested


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def one_pass(model, optimizer, data):
    for images, labels in data:
        train_step(model, optimizer, images, labels)


def average(model):
    """Make every rank's model the mean of all of them."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(weights)
    nn.utils.vector_to_parameters(weights / dist.get_world_size(), model.parameters())


def shuffled(images, labels, size, steps, epoch, rank):
    """So many batches of a rank's shard, in an order of this epoch's own: (images, labels) for each step."""
    torch.manual_seed(seed(epoch, rank))  # for dropout
    order = batches(len(labels), size, epoch, rank)[:steps]
    return ((images[batch], labels[batch]) for batch in order)


def in_ranks(train_pass, task, epochs, samples, skew=0.0, wrap=None, at_the_end=None):
    """Join the other ranks. In every epoch run `train_pass`, then `at_the_end`, and test the model."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT))
    torch.set_num_threads(1)  # the ranks share the cores
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards = skewed_split(labels_of(task)[:samples], world_size, skew)
    images, labels = tensors(task, rows=shards[rank])  # prepared once
    test_set = tensors(task, train=False)
    sizes = [len(shard) for shard in shards]
    steps = math.ceil(min(sizes) / task.batch)  # of the shortest: all ranks average equally often
    model = task.model()
    if wrap:
        model = wrap(model)
    optimizer = task.optimizer(model)
    clock = 0.0
    for epoch in range(epochs):
        data = shuffled(images, labels, task.batch, steps, epoch, rank)
        dist.barrier()
        began = time.perf_counter()
        train_pass(model, optimizer, data)
        own = model
        if at_the_end:
            own = copy.deepcopy(model)  # as it is before the average
            at_the_end(model)
        clock += time.perf_counter() - began
        loss, accuracy = tested(model, *test_set)
        _, own_accuracy = tested(own, *test_set)
        report(epoch=epoch + 1, samples=(epoch + 1) * sum(sizes), seconds=clock,
               loss=loss, accuracy=accuracy, own=own_accuracy)
    if rank == 0:
        report(weights=nn.utils.parameters_to_vector(model.parameters()).tolist())
    dist.barrier()
    dist.destroy_process_group()
