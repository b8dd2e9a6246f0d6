"""Floating-point formats, bit by bit: what a number becomes in each of them.

    encode(0.1, FORMATS["bf16"])
"""

import math
from typing import NamedTuple

import torch


class Format(NamedTuple):
    """A floating-point format: one bit for the sign, then the exponent's, then the fraction's."""

    name: str
    dtype: torch.dtype  # in which torch stores such numbers; TF32, which exists only inside a GPU, as float32
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def stored(self):
        """How many bits such a number takes in memory."""
        return 8 * self.dtype.itemsize

    @property
    def smallest_normal(self):
        return 2.0 ** (2 - 2 ** (self.exponent_bits - 1))


_ALL = (
    Format("fp32", torch.float32, 8, 23),
    Format("tf32", torch.float32, 8, 10),
    Format("bf16", torch.bfloat16, 8, 7),
    Format("fp16", torch.float16, 5, 10),
    Format("fp8 e5m2", torch.float8_e5m2, 5, 2),
    Format("fp8 e4m3", torch.float8_e4m3fn, 4, 3),
)
FORMATS = {form.name: form for form in _ALL}


class Encoded(NamedTuple):
    """A number in a format: its three parts as zeros and ones, and what it has become."""

    sign: str
    exponent: str
    fraction: str
    value: float
    kind: str  # "normal", "subnormal", "zero", "infinite" or "not a number"


def rounded(tensor, form):
    """The values of a float tensor as they are in `form`, as a float32 tensor of the same shape."""
    if form.bits == form.stored:
        return tensor.to(form.dtype).float()
    # A format that no memory holds: float32, without the last bits of the fraction.
    single = tensor.float()
    drop = 23 - form.fraction_bits
    bits = single.view(torch.int32)
    # Half a step up, then cut off: that rounds to the nearest. A tie goes to the even one.
    last_bit_kept = (bits >> drop) & 1
    bits = bits + (2 ** (drop - 1) - 1) + last_bit_kept
    cut = (bits & -(2**drop)).view(torch.float32)
    return torch.where(single.isfinite(), cut, single)


def encode(number, form):
    """What `number`, a Python float, becomes in `form`."""
    stored = rounded(torch.tensor(number, dtype=torch.float64), form)
    value = stored.item()
    integer = getattr(torch, f"int{form.stored}")  # of the same size, to see the bits
    code = stored.to(form.dtype).view(integer).item() % 2**form.stored  # as an unsigned integer
    bits = f"{code:0{form.stored}b}"[:form.bits]
    fraction_begins = 1 + form.exponent_bits
    return Encoded(bits[0], bits[1:fraction_begins], bits[fraction_begins:], value, kind_of(value, form))


def decode(bits, form):
    """The number that bits stand for in `form`: the other way round than `encode`."""
    code = torch.tensor(int(bits.ljust(form.stored, "0"), 2))  # int64
    integer = getattr(torch, f"int{form.stored}")
    return code.to(integer).view(form.dtype).double().item()


def kind_of(value, form):
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite"
    if value == 0:
        return "zero"
    if abs(value) < form.smallest_normal:
        return "subnormal"
    return "normal"


def parse(text):
    """The number that a text says: `0.1`, `-3e-8`, `1/3`, `2**-24`, `inf` or `nan`. Raises ValueError."""
    try:
        text = text.replace("^", "**")
        if "**" in text:
            base, power = map(float, text.split("**"))
            return math.copysign(abs(base) ** power, base)  # as in Python, a minus sign comes after the power
        if "/" in text:
            above, below = map(float, text.split("/"))
            return above / below
        return float(text)
    except (ValueError, ArithmeticError):
        raise ValueError(f"“{text.strip()[:40]}” cannot be read. "
                         "Write for example 0.1, -3e-8, 1/3, 2**-24, 65504, inf or nan.") from None
