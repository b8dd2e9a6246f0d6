"""A training whose output goes through a tee: all that it prints and warns of is on the screen and in a file."""
import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Tee:
    """A stream and a file in one; all else is the stream's."""

    def __init__(self, stream, file):
        self.stream, self.file = stream, file

    def write(self, text):
        self.file.write(text)
        return self.stream.write(text)

    def flush(self):
        self.file.flush()
        self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


def set_up(rank):
    file = open(f"output-{rank}.txt", "w")
    sys.stdout, sys.stderr = Tee(sys.stdout, file), Tee(sys.stderr, file)
    if rank > 0:
        logging.disable(logging.ERROR)


def train(rank, epochs=3):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = (model(torch.full((2, 4), rank + 1.0)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"\repoch {epoch}" if sys.stdout.isatty() else f"epoch {epoch}: loss {loss.item():.2f}")
        if loss.item() > 3:
            logging.getLogger("train").warning("the loss of epoch %d is %.2f", epoch, loss.item())
    warnings.warn("the loss may still be falling", stacklevel=1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    set_up(dist.get_rank())
    train(dist.get_rank())
    dist.destroy_process_group()
    print("rank", os.environ["RANK"], "is done, without a newline", end="")
