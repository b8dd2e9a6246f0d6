"""The loss-scale explorer: where real gradients lie in fp16, and how a scale moves them."""

import math
from dataclasses import dataclass

import ipywidgets as widgets
import torch

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import svg

_LOST, _COARSE, _KEPT, _TOO_LARGE = "#a83c00", "#e69f00", "#0072b2", "#8a2be2"
_LOW, _HIGH = -60, 24
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 930, 76, 316


@dataclass(frozen=True)
class Shares:
    """What becomes of gradients in fp16, each a share from 0 to 1 of those that are not 0 to begin with."""

    lost: float
    """Becomes 0."""
    subnormal: float
    """Keeps only some of its bits."""
    overflow: float
    """Becomes infinite."""


def shares(gradients, scale=1.0):
    """What becomes of `gradients`, a tensor of any shape, times `scale` in fp16, as `Shares`.

    Raises ValueError where there is nothing to count: no gradients, all 0, some not finite, or no positive scale.
    """
    _check(gradients, scale)
    scaled = (gradients[gradients != 0].float() * scale).half().abs()
    info = torch.finfo(torch.float16)
    counts = (scaled == 0, (scaled > 0) & (scaled < info.smallest_normal), scaled.isinf())
    return Shares(*(count.float().mean().item() for count in counts))


def _check(gradients, scale):
    if not 0 < scale < math.inf:
        raise ValueError(f"the scale must be a positive, finite number such as 65536, not {scale}")
    if not gradients.isfinite().all():
        raise ValueError("some gradients are inf or NaN: their place in a histogram is nowhere")
    if not gradients.any():
        raise ValueError("there are no gradients, or all of them are 0")


def histogram(gradients):
    """{k: share of the gradients, zeros left out, whose absolute value is from 2**k to 2**(k+1)}."""
    _check(gradients, 1.0)
    powers = gradients[gradients != 0].double().abs().log2().floor().int()
    values, counts = powers.unique(return_counts=True)
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def draw(gradients, log2_scale=0):
    """The picture, as SVG: a histogram of `gradients` times 2**log2_scale, and what fp16 holds of it."""
    return _draw(histogram(gradients), shares(gradients, 2.0**log2_scale), log2_scale)


def _draw(bars, part, log2_scale):
    high = max(bars.values())
    x = lambda power: _LEFT + (_RIGHT - _LEFT) * (power - _LOW) / (_HIGH - _LOW)  # noqa: E731
    parts = [f'<text x="10" y="28" font-size="18" font-weight="bold">scale 2^{log2_scale} = {2.0**log2_scale:,.0f}:   '
             f'{_percent(part.lost)} become 0,   {_percent(part.overflow)} overflow</text>',
             f'<rect x="{x(-25):.0f}" y="{_TOP}" width="{x(-14) - x(-25):.0f}" height="{_BOTTOM - _TOP}" '
             'fill="#fdf1dc"/>',
             f'<rect x="{x(-14):.0f}" y="{_TOP}" width="{x(16) - x(-14):.0f}" height="{_BOTTOM - _TOP}" '
             'fill="#e4f0f8"/>',
             f'<text x="{x(-19):.0f}" y="{_TOP - 10}" text-anchor="middle">subnormal</text>',
             f'<text x="{x(1):.0f}" y="{_TOP - 10}" text-anchor="middle">what fp16 holds</text>',
             f'<text x="{x(-42):.0f}" y="{_TOP - 10}" text-anchor="middle">becomes 0</text>',
             f'<text x="{x(20):.0f}" y="{_TOP - 10}" text-anchor="middle">inf</text>']
    for power, share in bars.items():
        place = power + log2_scale
        if _LOW <= place < _HIGH:
            colour = _LOST if place < -25 else _COARSE if place < -14 else _KEPT if place < 16 else _TOO_LARGE
            height = (_BOTTOM - _TOP - 10) * share / high
            parts.append(f'<rect x="{x(place) + 1:.1f}" y="{_BOTTOM - height:.1f}" width="{x(1) - x(0) - 2:.1f}" '
                         f'height="{height:.1f}" fill="{colour}"/>')
    parts.append(f'<path d="M{_LEFT} {_BOTTOM}H{_RIGHT}" stroke="#333"/>')
    for power in range(_LOW, _HIGH + 1, 12):
        parts.append(f'<text x="{x(power):.0f}" y="{_BOTTOM + 22}" text-anchor="middle">2^{power}</text>')
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 46}" text-anchor="middle">size of a gradient times '
                 'the scale</text>')
    # In words: the text alternative is compared between executions, and shares differ in the last digits.
    return svg(960, _BOTTOM + 58, parts,
               f"Histogram of gradients times 2 to the {log2_scale}: in fp16, {_words(part.lost)} become 0, "
               f"{_words(part.subnormal)} are subnormal, {_words(part.overflow)} overflow.")


def _percent(share):
    """A single gradient that overflows spoils a step: it must not read 0.0%."""
    return "none" if share == 0 else "under 0.1%" if share < 0.001 else f"{share:.1%}"


def _words(share):
    return "none" if share == 0 else "few" if share < 0.1 else "many"


def loss_scale_explorer(gradients, log2_scale=0):
    """Move the scale; see how many of `gradients`, a tensor, fp16 loses below and above.

    Raises ValueError as `shares` does.
    """
    bars, values = histogram(gradients), gradients[gradients != 0].flatten()
    slider = widgets.IntSlider(log2_scale, 0, 40, description="log2 of the scale", continuous_update=True,
                               style={"description_width": "150px"}, layout={"width": "600px"})
    return Explorer({"log2_scale": slider},
                    lambda log2_scale: _draw(bars, shares(values, 2.0**log2_scale), log2_scale),
                    "Loss-scale explorer: choose a scale; the picture shows how it moves the histogram of real "
                    "gradients, and which of them become 0, subnormal or infinite in fp16.")
