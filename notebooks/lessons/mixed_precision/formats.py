"""Floating-point formats, bit by bit: what a number becomes in each of them.

    from lessons.mixed_precision.formats import FORMATS, encode, parse
    encode(0.1, FORMATS["bf16"])

The largest number of a format comes from `torch.finfo`; all others, and TF32's, which no tensor is stored in, from its
bits.
"""

import math
import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """A floating-point format: one bit for the sign, then the exponent's, then the fraction's."""

    name: str
    dtype: torch.dtype
    """In which torch stores such numbers: float32 for TF32, which a GPU uses only while it multiplies."""
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self):
        """How many bits it keeps."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def stored(self):
        """How many bits such a number takes in memory."""
        return 8 * self.dtype.itemsize

    @property
    def largest(self):
        """The largest finite number."""
        if self.bits == self.stored:
            return torch.finfo(self.dtype).max
        return (2 - 2**-self.fraction_bits) * 2.0 ** (2 ** (self.exponent_bits - 1) - 1)

    @property
    def smallest_normal(self):
        """The smallest positive number that has all of its fraction's bits."""
        return 2.0 ** (2 - 2 ** (self.exponent_bits - 1))

    @property
    def eps(self):
        """The distance from 1 to the next number; a rounding is wrong by at most half of it, relatively."""
        return 2.0**-self.fraction_bits


FORMATS = {form.name: form for form in (
    Format("fp32", torch.float32, 8, 23),
    Format("tf32", torch.float32, 8, 10),
    Format("bf16", torch.bfloat16, 8, 7),
    Format("fp16", torch.float16, 5, 10),
    Format("fp8 e5m2", torch.float8_e5m2, 5, 2),
    Format("fp8 e4m3", torch.float8_e4m3fn, 4, 3),
)}


@dataclass(frozen=True)
class Encoded:
    """A number in a format."""

    sign: str
    exponent: str
    fraction: str
    """Each as zeros and ones."""
    value: float
    kind: str
    """`"normal"`, `"subnormal"`, `"zero"`, `"infinite"` or `"not a number"`."""


def rounded(tensor, form):
    """The values of a float tensor as they are in `form`, as a float32 tensor of the same shape."""
    single = tensor.to(torch.float32)
    if form.bits == form.stored:
        return tensor.to(form.dtype).float()
    drop = 23 - form.fraction_bits
    bits = single.view(torch.int32)
    bits = bits + (2 ** (drop - 1) - 1) + ((bits >> drop) & 1)  # to the nearest; a tie goes to the even neighbour
    return torch.where(single.isfinite(), (bits & -(2**drop)).view(torch.float32), single)


def encode(number, form):
    """What `number`, a Python float, becomes in `form`, as `Encoded`."""
    value = rounded(torch.tensor(number, dtype=torch.float64), form)
    stored = value.to(form.dtype).view(getattr(torch, f"int{form.stored}")).item() % 2**form.stored
    bits = f"{stored:0{form.stored}b}"[:form.bits]
    value = value.item()
    if math.isnan(value):
        kind = "not a number"
    elif math.isinf(value):
        kind = "infinite"
    else:
        kind = "zero" if value == 0 else "subnormal" if abs(value) < form.smallest_normal else "normal"
    return Encoded(bits[0], bits[1:1 + form.exponent_bits], bits[1 + form.exponent_bits:], value, kind)


def parse(text):
    """The number that a text says: `0.1`, `-3e-8`, `1/3`, `2**-24`, `inf` or `nan`.

    Raises ValueError, whose message says what can be written, where the text says no number.
    """
    power = re.fullmatch(r"\s*([+-]?\d+(?:\.\d*)?)\s*(?:\*\*|\^)\s*([+-]?\d+)\s*", text)
    ratio = re.fullmatch(r"\s*([+-]?\d+(?:\.\d*)?)\s*/\s*(\d+(?:\.\d*)?)\s*", text)
    try:
        if power:  # as in Python, a minus sign comes after the power
            try:
                size = float(power[1].lstrip("+-")) ** float(power[2])
            except OverflowError:
                size = math.inf
            return -size if power[1].startswith("-") else size
        if ratio:
            return float(ratio[1]) / float(ratio[2])
        return float(text)
    except (ValueError, ZeroDivisionError):
        shown = text.strip()[:40]
        said = f"“{shown}” is not a number" if shown else "the box is empty"
        raise ValueError(f"{said}. Write for example 0.1, -3e-8, 1/3, 2**-24, 65504, inf or nan.") from None
