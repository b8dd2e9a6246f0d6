"""The article's training, with ranks that stay.

    launch("sgd_staying.py", nprocs=4), or torchrun --nproc-per-node=4 sgd_staying.py --task MNIST
"""

from lessons.parallel_sgd.ranks import average, in_ranks, one_pass
from lessons.parallel_sgd.shards import options


def train_pass(model, optimizer, data):
    optimizer.state.clear()  # a new worker would begin without momentum
    one_pass(model, optimizer, data)


if __name__ == "__main__":
    in_ranks(train_pass, at_the_end=average, **options(__doc__))
