"""Tuples, lists and dicts with tensors in them: made from a plan, shown as text."""

import math
import re
from pprint import pformat

import torch
from torch.utils._pytree import tree_map

#: The shape of one sample of each dtype.
SAMPLE = {"float32": (2,), "int64": (), "float64": (1, 2), "bfloat16": (3,), "bool": (), "float16": (1,)}

#: Where to look if an exercise's function changes what it was given.
GIVEN_STAYS = "`pop`, `del` and assignments change what you were given: make something new"


def made(plan, samples, start=0):
    """The nested value `plan`, with a tensor in place of each dtype's name.

    Args:
        samples: The size of each tensor's dimension 0.
        start: The first number in each tensor.
    """

    def tensor(leaf):
        if leaf not in SAMPLE:
            return leaf
        shape = (samples, *SAMPLE[leaf])
        numbers = start + torch.arange(math.prod(shape)).view(shape)
        if leaf == "bool":
            numbers = numbers % 3  # or all but the first would be True
        values = numbers.to(getattr(torch, leaf))
        return values.requires_grad_(values.is_floating_point())

    return tree_map(tensor, plan)


def shown(value):
    """A nested value as text: the same text, the same kinds, names, dtypes, shapes and numbers."""

    def detached(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach()  # whose text does not say how the tensor was made
        return leaf

    text = pformat(tree_map(detached, value), width=10**6)  # which sorts the names in dicts
    return re.sub(r"\s+", " ", text).replace("[ ", "[")
