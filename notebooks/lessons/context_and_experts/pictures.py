"""The ranks' colours in this lesson's pictures, and which pairs of tokens each rank computes."""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_rgb

from lessons.context_and_experts.cuts import CUTS

TOKENS = 64


def colours(ranks):
    cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return torch.tensor([to_rgb(cycle[rank]) for rank in range(ranks)])


def picture_of(cut, ranks):
    """T × T colours: in row q and column k that of the rank which computes the pair of query q and key k."""
    picture, own, positions = torch.ones(TOKENS, TOKENS, 3), colours(ranks), torch.arange(TOKENS)
    for rank, rows in enumerate(CUTS[cut](TOKENS, ranks)):
        seen = (rows[:, None] >= positions)[..., None]
        pale = 1 - 0.4 * (1 - own[rank])
        picture[rows] = torch.where(seen, pale, torch.ones(3))
    return picture.numpy()
