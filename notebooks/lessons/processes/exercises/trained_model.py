"""The model that a child has trained."""

import torch
from torch import nn


def trained():
    """A model with weights, buffers and gradients that are all different, and need all of their digits."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values(), start=1):
            tensor.copy_(100 * number + torch.arange(tensor.numel()).view(tensor.shape) / 7)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() / 3
    return model


def values(model):
    """Its weights and buffers as plain lists, by name."""
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}
