"""The child trains, the parent waits, and the parent's model has learned nothing. Where did the training go?

    launch("lost_training.py", nprocs=1)
"""

import copy

import torch
import torch.multiprocessing as mp
from torch import nn

from helpers.data import Digits

DEVICE = "cuda" if torch.cuda.is_available() else "stand-in"


def moved(model):
    """The model on the device, in the device's own memory. The stand-in has none, so it gets a copy."""
    return model.to(DEVICE) if DEVICE == "cuda" else copy.deepcopy(model)


def accuracy(model):
    """Share of the test digits that the model reads correctly."""
    images, labels = (part.to(next(model.parameters()).device) for part in Digits(train=False).tensors())
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def train(rank, model):
    """Move the model to the device and train it there."""
    model = moved(model)
    images, labels = (part.to(next(model.parameters()).device) for part in Digits(train=True).tensors())
    for _ in range(100):  # SGD by hand: in a new process, torch's optimizers take seconds to import
        nn.functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
                parameter.grad = None
    print(f"child, after training:  {accuracy(model):.0%} right", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    print(f"parent, before:         {accuracy(model):.0%} right", flush=True)
    mp.spawn(train, args=(model,), nprocs=1)
    print(f"parent, after:          {accuracy(model):.0%} right")
