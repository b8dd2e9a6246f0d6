"""What all trainers of this lesson train: a dataset, a small network, and the settings of the training."""

from dataclasses import dataclass

import torch
from torch import nn


def digits_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def mnist_network():
    """The network of the article."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10))


@dataclass(frozen=True)
class Task:
    dataset: str
    network: object
    batch: int  # images in a step
    lr: float  # learning rate
    momentum: float
    mean: float  # of the pixels, which are made to have mean 0 and deviation 1
    std: float
    method: str = "SGD"

    def model(self):
        """The network with its first weights, the same ones in every process."""
        torch.manual_seed(1)
        return [self.network() for _ in range(5)][-1]  # as in the article: four local ones, then the global

    def optimizer(self, model):
        if self.method == "Adam":
            return torch.optim.Adam(model.parameters(), lr=self.lr)
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)


TASKS = {
    "Digits": Task("Digits", digits_network, batch=8, lr=0.05, momentum=0.5, mean=0.31, std=0.38),
    "MNIST": Task("MNIST", mnist_network, batch=64, lr=0.01, momentum=0.5, mean=0.1307, std=0.3081),
}
