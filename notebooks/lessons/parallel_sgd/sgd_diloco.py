"""DiLoCo: each rank trains alone for `every` steps. Then an outer optimizer steps along the mean change.

    launch("sgd_diloco.py", nprocs=4, args=["--every", "15", "--method", "Adam", "--lr", "0.001"])
"""

import torch
import torch.distributed as dist

from lessons.parallel_sgd.ranks import in_ranks, train_step
from lessons.parallel_sgd.shards import options


@torch.no_grad()
def outer_step(model):
    agreed = model.outer.param_groups[0]["params"]  # the weights on which all ranks agreed last
    for last, mine in zip(agreed, model.parameters(), strict=True):
        last.grad = last - mine  # this rank's change, with the sign of a gradient
        dist.all_reduce(last.grad)
        last.grad /= dist.get_world_size()
    model.outer.step()
    for new, mine in zip(agreed, model.parameters(), strict=True):
        mine.copy_(new)


def train(every, outer, momentum, **settings):
    def with_outer(model):
        agreed = [weight.detach().clone() for weight in model.parameters()]
        model.outer = torch.optim.SGD(agreed, lr=outer, momentum=momentum, nesterov=momentum > 0)
        return model

    def train_pass(model, optimizer, data):
        for step, (images, labels) in enumerate(data, start=1):
            train_step(model, optimizer, images, labels)  # the inner optimizer's
            if step % every == 0:
                outer_step(model)

    in_ranks(train_pass, wrap=with_outer, **settings)


if __name__ == "__main__":
    train(**options(__doc__, every=15, outer=0.7, momentum=0.9))
