"""The child trains and the parent waits. What has the parent's model learned?

    launch("lost_training.py", nprocs=1, args=["cpu"]), or "gpu"
"""

import copy
import sys

import torch
import torch.multiprocessing as mp
from torch import nn

from helpers.data import Digits


def moved(model, device):
    """The model on the device. Without a GPU, a copy does what moving to one would do."""
    if device == "cpu":
        return model.to("cpu")
    if torch.cuda.is_available():
        return model.to("cuda")
    return copy.deepcopy(model)


def digits_on_device_of(model, train):
    """Images and labels, on the device on which the model is."""
    device = next(model.parameters()).device
    images, labels = Digits(train=train).tensors()
    return images.to(device), labels.to(device)


def accuracy(model):
    """Share of the test digits that the model reads correctly."""
    images, labels = digits_on_device_of(model, train=False)
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def train(rank, model, device):
    """Move the model to the device and train it there."""
    model = moved(model, device)
    images, labels = digits_on_device_of(model, train=True)
    for _ in range(100):  # SGD by hand: a torch optimizer would import torch._dynamo in each process
        nn.functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
                parameter.grad = None
    print(f"child, after training:  {accuracy(model):.0%} right", flush=True)


def main(device):
    """Let a child train the parent's model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    print(f"parent, before:         {accuracy(model):.0%} right", flush=True)
    mp.spawn(train, args=(model, device), nprocs=1)
    print(f"parent, after:          {accuracy(model):.0%} right")


if __name__ == "__main__":
    main(sys.argv[1])
