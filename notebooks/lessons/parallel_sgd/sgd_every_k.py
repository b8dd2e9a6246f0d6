"""Each rank trains on its own shard, and the ranks average their models every k steps.

    launch("sgd_every_k.py", nprocs=4, args=["--every", "8"])
    torchrun --nproc-per-node=4 sgd_every_k.py --every 8
"""

from lessons.parallel_sgd.ranks import average, in_ranks, train_step
from lessons.parallel_sgd.shards import options


def train(every, **settings):
    def train_pass(model, optimizer, data):
        for step, (images, labels) in enumerate(data):
            if step > 0 and step % every == 0:
                average(model)
            train_step(model, optimizer, images, labels)

    in_ranks(train_pass, at_the_end=average, **settings)


if __name__ == "__main__":
    train(**options(__doc__, every=1, skew=0.0))
