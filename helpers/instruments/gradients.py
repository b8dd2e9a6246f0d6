"""Is the gradient of a parallel program that of the same program in one process? If not, how does it differ?

A loss does not tell: AdamW forgives a gradient that is N times too large, and many wrong gradients still lead
downhill. Compare in float64, or allow `tolerance=1e-4` in float32.
"""

import math
import re
from typing import NamedTuple

import torch
import torch.distributed as dist

#: A gradient that is shorter than so many roundings of the longest one counts as zero. The gradient of a bias
#: before a batch norm, or of attention's keys, is zero, and rounding left at most 2 of them in our trials.
ROUNDINGS = 20

#: What torch writes into the names of what it has wrapped, to compile it, shard it or checkpoint it.
_WRAPPER = re.compile(r"_(orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module)\.")


class Row(NamedTuple):
    """One parameter's gradient, held against the reference."""

    name: str
    factors: tuple
    """By rank that has it: the multiple of the reference that comes nearest to the rank's gradient. Of a
    reference that is zero there is none."""
    rest: float
    """What is left then, as a share of the reference's length: the largest of all ranks. Where the reference
    is zero: as a share of the longest reference. nan where nothing was compared."""
    looks_like: str
    """What such a pattern usually means; or why nothing was compared."""

    def __str__(self):
        if math.isnan(self.rest):
            return f"{self.name:12} {'':16} {'':9}   {self.looks_like}"
        factor = "zero"
        if self.factors:
            low, high = f"{min(self.factors):.2f}", f"{max(self.factors):.2f}"
            factor = f"× {low}" if low == high else f"× {low} to {high}"
        return f"{self.name:12} {factor:16} rest {self.rest:4.0%}   {self.looks_like}"


def compare_gradients(mine, reference, shards=None, tolerance=1e-6):
    """Hold this rank's gradients against those of one process. All ranks call it, and get the same `Row`s.

    mine, reference: {name: gradient, or None}. Names may also be those that the model has in DDP, in FSDP or
    compiled; a rank may have some of them only, as a stage of a pipeline does. shards: {name: dimension in
    which it is cut evenly among the ranks}. tolerance: what rounding may change of a gradient, as a share.
    """
    ours, theirs = _bare(mine), _bare(reference)
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, {ours[name]: _whole(one) for name, one in mine.items()})
    reference = {theirs[name]: _whole(one) for name, one in reference.items()}
    cut = {ours.get(name, theirs.get(name)): dimension for name, dimension in (shards or {}).items()}

    known = [[one for one in them.values() if one is not None and not _no_numbers(one)]
             for them in (reference, *everybody)]
    longest = max((one.double().norm().item() for one in known[0]), default=0.0)
    rounding = max((torch.finfo(one.dtype).eps for them in known for one in them), default=0.0)
    floor = longest * min(tolerance, ROUNDINGS * rounding)

    rows = []
    for name in dict.fromkeys([*reference, *(name for rank in everybody for name in rank)]):
        got = {number: rank[name] for number, rank in enumerate(everybody) if name in rank}
        reason = _one_sided(got, reference, name)
        if not reason:
            pieces = _pieces(reference[name], len(everybody), cut.get(name))
            wanted = {number: pieces[number] for number in got}
            reason = _incomparable(got, wanted)
        if reason:
            rows.append(Row(name, (), math.nan, reason))
        else:
            rows.append(_row(name, got, wanted, reference[name].double(), longest, floor, tolerance))
    return rows


def _bare(names):
    """{name: the name that the model itself has for it}."""
    bare = {name: _WRAPPER.sub("", name) for name in names}
    while bare and all(name.startswith("module.") for name in bare.values()):  # DDP's, around the whole model
        bare = {name: inner.removeprefix("module.") for name, inner in bare.items()}
    return bare


def _whole(gradient):
    """The whole gradient, whatever it is kept in, on the CPU; None stays None."""
    if gradient is None:
        return None
    if hasattr(gradient, "full_tensor"):  # a DTensor: FSDP2's, or that of a parallel layer
        gradient = gradient.full_tensor()
    gradient = gradient.detach().to_dense()
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient if gradient.is_meta else gradient.cpu()


def _no_numbers(gradient):
    """Why it holds no numbers to compare; nothing if it does."""
    if gradient.is_meta:
        return "a meta tensor, without numbers,"
    return "" if gradient.isfinite().all() else "inf or nan"


def _pieces(whole, ranks, dimension):
    """What each rank should have of it: all; or a piece, where it is cut, and the last ones may be empty."""
    if dimension is None:
        return [whole] * ranks
    pieces = whole.chunk(ranks, dimension)
    return [*pieces, *[whole.narrow(dimension, 0, 0)] * (ranks - len(pieces))]


def _one_sided(got, reference, name):
    """What there is to say if not all of them have a gradient of this name; else nothing."""
    if name not in reference:
        return "not compared: one process has no such name"
    if not got:
        return "not compared: no rank has such a name"
    without = [str(rank) for rank, gradient in got.items() if gradient is None]
    if reference[name] is None:
        none_at_all = len(without) == len(got)
        return "no gradient, as in one process" if none_at_all else "a gradient, and one process has none"
    if without:
        return f"no gradient in rank {', '.join(without)}, and one process has one"
    return ""


def _incomparable(got, wanted):
    """Why the numbers cannot be compared; nothing if they can."""
    for rank, gradient in got.items():
        has, should = tuple(gradient.shape), tuple(wanted[rank].shape)
        if has != should:
            return f"not compared: of shape {has} in rank {rank}, not {should}. Do `shards` say how it is cut?"
        for one, where in ((wanted[rank], "one process"), (gradient, f"rank {rank}")):
            if reason := _no_numbers(one):
                return f"not compared: {reason} in {where}"
    return ""


def _row(name, got, wanted, whole, longest, floor, tolerance):
    """The row of gradients that can be compared."""
    factors, rests = [], []
    tolerance *= len(got)
    for rank, gradient in got.items():
        gradient, piece = gradient.double(), wanted[rank].double()
        length = piece.norm().item()
        if length > floor:
            factor, rest = _fit(gradient, piece)
            factors.append(factor)
            rests.append(rest)
            tolerance = max(tolerance, min(0.1, floor / length))  # the shorter it is, the more is rounding
        else:
            excess = gradient.norm().item()
            scale = whole.norm().item() if whole.norm() > floor else longest
            rests.append(0.0 if excess <= floor else excess / scale if scale else math.inf)
    total = (0.0, 1.0)
    if factors and all(piece.shape == whole.shape for piece in wanted.values()):
        total = _fit(sum(gradient.double() for gradient in got.values()), whole)
    return Row(name, tuple(factors), max(rests), _meaning(factors, len(got), max(rests), total, tolerance))


def _fit(got, wanted):
    """The multiple of `wanted` that comes nearest to `got`, and what is left then, as a share of `wanted`."""
    factor = ((got * wanted).sum() / (wanted * wanted).sum()).item()
    return factor, ((got - factor * wanted).norm() / wanted.norm()).item()


def _meaning(factors, n, rest, total, tolerance):
    if not factors:
        return "right" if rest == 0 else "not zero, as it is in one process"
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
