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
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, {ours[name]: _whole(gradient) for name, gradient in mine.items()})
    reference = {theirs[name]: _whole(gradient) for name, gradient in reference.items()}
    cut = {ours.get(name, theirs.get(name)): dimension for name, dimension in (shards or {}).items()}

    usable = [gradient for gradient in reference.values() if gradient is not None and gradient.isfinite().all()]
    longest = max((gradient.double().norm().item() for gradient in usable), default=0.0)
    rounding = max((torch.finfo(gradient.dtype).eps for gradient in usable), default=0.0)
    # What is no longer than this counts as zero.
    floor = longest * min(tolerance, ROUNDINGS * rounding)

    names = dict.fromkeys(reference)  # a dict, to keep the order
    for gradients in by_rank:
        names |= dict.fromkeys(gradients)
    rows = []
    for name in names:
        actual = {rank: gradients[name] for rank, gradients in enumerate(by_rank) if name in gradients}
        reason = _one_sided(actual, reference, name)
        if not reason:
            pieces = _pieces(reference[name], len(by_rank), cut.get(name))
            wanted = {rank: pieces[rank] for rank in actual}
            reason = _incomparable(actual, wanted)
        if reason:
            rows.append(Row(name, (), math.nan, reason))
        else:
            rows.append(_row(name, actual, wanted, reference[name].double(), longest, floor, tolerance))
    return rows


def _bare(names):
    """{name: the name that the model itself has for it}."""
    bare = {name: _WRAPPER.sub("", name) for name in names}
    if all(name.startswith("module.") for name in bare.values()):  # DDP's, around the whole model
        bare = {name: inner.removeprefix("module.") for name, inner in bare.items()}
    return bare


def _whole(gradient):
    """The whole gradient, whatever it is kept in, on the CPU; None stays None."""
    if gradient is None:
        return None
    if hasattr(gradient, "full_tensor"):  # a DTensor: FSDP2's, or that of a parallel layer
        gradient = gradient.full_tensor()
    return gradient.detach().to_dense().cpu()


def _pieces(whole, ranks, dimension):
    """What each rank should have of it: all; or a piece, where it is cut, and the last ones may be empty."""
    if dimension is None:
        return [whole] * ranks
    pieces = list(whole.chunk(ranks, dimension))
    empty = whole.narrow(dimension, 0, 0)
    return pieces + [empty] * (ranks - len(pieces))


def _one_sided(actual, reference, name):
    """What there is to say if not all of them have a gradient of this name; else nothing."""
    if name not in reference:
        return "not compared: one process has no such name"
    if not actual:
        return "not compared: no rank has such a name"
    without = [str(rank) for rank, gradient in actual.items() if gradient is None]
    if reference[name] is None:
        if len(without) == len(actual):
            return "no gradient, as in one process"
        return "a gradient, and one process has none"
    if without:
        return f"no gradient in rank {', '.join(without)}, and one process has one"
    return ""


def _incomparable(actual, wanted):
    """Why the numbers cannot be compared; nothing if they can."""
    for rank, gradient in actual.items():
        shape, wanted_shape = tuple(gradient.shape), tuple(wanted[rank].shape)
        if shape != wanted_shape:
            return (f"not compared: of shape {shape} in rank {rank}, not {wanted_shape}. "
                    "Do `shards` say how it is cut?")
        if not wanted[rank].isfinite().all():
            return "not compared: inf or nan in one process"
        if not gradient.isfinite().all():
            return f"not compared: inf or nan in rank {rank}"
    return ""


def _row(name, actual, wanted, whole, longest, floor, tolerance):
    """The row of gradients that can be compared."""
    factors = []
    rests = []
    tolerance *= len(actual)  # a sum over so many ranks rounds so often
    for rank, gradient in actual.items():
        gradient = gradient.double()
        piece = wanted[rank].double()
        length = piece.norm().item()
        if length > floor:
            factor, rest = _fit(gradient, piece)
            factors.append(factor)
            rests.append(rest)
            tolerance = max(tolerance, min(0.1, floor / length))  # the shorter it is, the more is rounding
        else:
            excess = gradient.norm().item()
            rests.append(excess / (longest or excess) if excess > floor else 0.0)
    # If only the ranks' sum is like the reference, each rank has a part of it.
    factor_of_sum, rest_of_sum = 0.0, 1.0
    if factors and all(piece.shape == whole.shape for piece in wanted.values()):
        factor_of_sum, rest_of_sum = _fit(sum(gradient.double() for gradient in actual.values()), whole)
    rest = max(rests)
    if not factors:
        meaning = "right" if rest == 0 else "not zero, as it is in one process"
    elif rest < tolerance and max(factors) - min(factors) < tolerance:
        meaning = _of_equal_factors(factors[0], len(actual), tolerance)
    elif rest_of_sum < tolerance and abs(factor_of_sum - 1) < tolerance:
        meaning = "a part in each rank: not added up yet"
    elif rest_of_sum < tolerance and abs(factor_of_sum - len(actual)) < tolerance:
        meaning = "of its own batch in each rank: not averaged yet"
    elif rest < tolerance:
        meaning = "the right direction, another length in each rank"
    else:
        meaning = "another gradient"
    return Row(name, tuple(factors), rest, meaning)


def _fit(actual, wanted):
    """The multiple of `wanted` that comes nearest to `actual`, and what is left then, as a share of `wanted`."""
    # Least squares: what is left is then at a right angle to `wanted`.
    factor = ((actual * wanted).sum() / (wanted * wanted).sum()).item()
    rest = ((actual - factor * wanted).norm() / wanted.norm()).item()
    return factor, rest


def _of_equal_factors(factor, n, tolerance):
    """What it means that the gradient of each of n ranks is this multiple of the reference."""
    if abs(factor - 1) < tolerance:
        return "right"
    if abs(factor - n) < tolerance:
        return "N times too large: a sum, not a mean; or reduced twice"
    if abs(factor - 1 / n) < tolerance:
        return "N times too small: a mean, not a sum"
    return "scaled"
