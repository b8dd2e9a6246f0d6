"""A stream of eight shards, read by two workers in each rank, which can go on in the middle of an epoch.

    launch("shard_stream.py", nprocs=2)
"""

import os
import random
import sys
from itertools import chain, islice

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from helpers import report

SHARDS = 8
SAMPLES = 24  # in each shard
BATCH = 4
WORKERS = 2


def samples_of(shard):
    """Stands for a file that is read from its beginning to its end."""
    return range(100 * shard, 100 * shard + SAMPLES)


def shuffled(samples, chance, size=10):
    buffer = list(islice(samples, size))
    for sample in samples:
        place = chance.randrange(size)
        yield buffer[place]
        buffer[place] = sample
    chance.shuffle(buffer)
    yield from buffer


class Shards(IterableDataset):
    """The rest of an epoch: `trained` says how many of its batches the rank has trained on.

    A loader takes its first batch from worker 0, which continues what worker `turn` has read before.
    """

    def __init__(self, epoch, trained, turn):
        self.epoch = epoch
        self.trained = trained
        self.turn = turn
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])

    def samples_for(self, worker):
        """All samples of the epoch that this worker of this rank reads, shuffled."""
        reader = self.rank * WORKERS + worker
        readers = self.world_size * WORKERS
        order = random.Random(self.epoch).sample(range(SHARDS), SHARDS)  # the same in all ranks
        mine = chain.from_iterable(samples_of(shard) for shard in order[reader::readers])
        return shuffled(mine, random.Random(1000 * self.epoch + reader))

    def __iter__(self):
        worker = (get_worker_info().id + self.turn) % WORKERS  # whom this one continues
        batches = len(range(worker, self.trained, WORKERS))  # that are done, of that worker
        yield from islice(self.samples_for(worker), batches * BATCH, None)  # decode only what comes out here


def batches(trained=0, turn=None, epoch=0):
    if turn is None:
        turn = trained
    dataset = Shards(epoch, trained, turn)
    method = "fork" if sys.platform == "linux" else None
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, multiprocessing_context=method)
    return [batch.tolist() for batch in loader]


if __name__ == "__main__":
    torch.set_num_threads(1)
    report(whole=batches(), rest=batches(trained=5), wrong_turn=batches(trained=5, turn=0))
