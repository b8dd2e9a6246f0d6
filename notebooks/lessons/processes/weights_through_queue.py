"""A child trains a model and sends its weights to its parent, first through a Queue, then through a Pipe.

    launch("weights_through_queue.py", nprocs=1)
"""

import sys

import torch
import torch.multiprocessing as mp
from torch import nn


def train(queue, pipe, done):
    """Learn y = 3x + 1, send the weights in two ways, and stay until the parent has read them."""
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), 3 * x + 1).backward()
        optimizer.step()
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}  # send no GPU memory
    queue.put(weights)
    pipe.send(weights)
    done.wait(60)


def show(way, weights):
    """Load the weights into a model of the parent's and print them."""
    model = nn.Linear(1, 1)
    model.load_state_dict(weights)
    print(f"{way}: y = {model.weight.item():.2f} x + {model.bias.item():.2f}")


def main():
    """Start the child, load what it sends, and let it go."""
    context = mp.get_context("fork" if sys.platform == "linux" else "spawn")  # nothing has computed yet
    queue = context.Queue()
    done = context.Event()
    here, there = context.Pipe()
    child = context.Process(target=train, args=(queue, there, done))
    child.start()
    show("Queue", queue.get(timeout=60))
    show("Pipe ", here.recv())
    done.set()
    child.join(60)
    print("child ended with exit code", child.exitcode)


if __name__ == "__main__":
    main()
