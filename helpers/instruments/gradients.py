"""Is the gradient of a parallel program that of the same program in one process? If not, how does it differ?

A loss does not tell: AdamW forgives a gradient that is N times too large, and many wrong gradients still lead
downhill. Compare in float64, or allow `tolerance=1e-4` in float32.
"""

from typing import NamedTuple

import torch.distributed as dist


class Row(NamedTuple):
    """One parameter's gradient, held against the reference."""

    name: str
    factors: tuple
    """By rank: the multiple of the reference that comes nearest to the rank's gradient."""
    rest: float
    """What is left then, as a share of the reference's length: the largest of all ranks."""
    looks_like: str
    """What such a pattern usually means."""

    def __str__(self):
        low, high = f"{min(self.factors):.2f}", f"{max(self.factors):.2f}"
        factor = f"× {low}" if low == high else f"× {low} to {high}"
        return f"{self.name:12} {factor:16} rest {self.rest:4.0%}   {self.looks_like}"


def compare_gradients(mine, reference, shards=None, tolerance=1e-6):
    """Hold this rank's gradients against those of one process. All ranks call it, and get the same `Row`s.

    mine, reference: {name: gradient}; shards: {name: dimension in which it is cut evenly among the ranks}.
    """
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    rows = []
    for name, whole in reference.items():
        got = [rank[name] for rank in everybody]
        cut = name in (shards or {})
        wanted = whole.chunk(len(got), shards[name]) if cut else [whole] * len(got)
        factors, rests = zip(*map(_fit, got, wanted), strict=True)
        total = (0.0, 1.0) if cut else _fit(sum(got), whole)
        meaning = _meaning(factors, max(rests), total, tolerance * len(got))
        rows.append(Row(name, factors, max(rests), meaning))
    return rows


def _fit(got, wanted):
    """The multiple of `wanted` that comes nearest to `got`, and what is left then, as a share of `wanted`."""
    factor = ((got * wanted).sum() / (wanted * wanted).sum()).item()
    return factor, ((got - factor * wanted).norm() / wanted.norm()).item()


def _meaning(factors, rest, total, tolerance):
    n = len(factors)
    multiples = {n: "N times too large: a sum, not a mean; or reduced twice",
                 1 / n: "N times too small: a mean, not a sum",
                 1: "right"}  # last, because in one rank all three keys are 1
    parts = {1: "a part in each rank: not added up yet", n: "of its own batch in each rank: not averaged yet"}
    if rest < tolerance and max(factors) - min(factors) < tolerance:
        return next((text for one, text in multiples.items() if abs(one - factors[0]) < tolerance), "scaled")
    for one, text in parts.items():
        if total[1] < tolerance and abs(one - total[0]) < tolerance:
            return text
    return "the right direction, another length in each rank" if rest < tolerance else "another gradient"
