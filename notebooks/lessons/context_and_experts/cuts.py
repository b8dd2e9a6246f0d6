"""How one sequence is cut among ranks, and how much of its causal attention each rank then computes."""

import torch


def contiguous(length, ranks):
    """For each rank the positions of its tokens: one piece after the other."""
    return list(torch.arange(length).chunk(ranks))


def zigzag(length, ranks):
    """For each rank an early piece and a late one: rank 0 has the first and the last."""
    pieces = torch.arange(length).chunk(2 * ranks)
    cut = []
    for rank in range(ranks):
        early = pieces[rank]
        late = pieces[-1 - rank]
        cut.append(torch.cat([early, late]))
    return cut


CUTS = {"contiguous": contiguous, "zigzag": zigzag}


def pairs(rows, columns):
    """How many pairs of a query and a key there are, where no query looks ahead."""
    may_look = rows[:, None] >= columns
    return int(may_look.sum())
