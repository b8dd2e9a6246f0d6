"""The loss-scale explorer: where real gradients lie in fp16, and how a scale moves them."""

from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from helpers.widgets.explorer import Explorer, slider

#: What fp16 makes of numbers, by size: {words: (from this power of two, up to that one, the colour)}.
_ZONES = {"becomes 0": (-60, -25, "C1"), "subnormal": (-25, -14, "C5"), "kept": (-14, 16, "C0"),
          "overflows": (16, 24, "C3")}
_LOW, _HIGH = -60, 24


class Shares(NamedTuple):
    """What becomes of gradients in fp16, each a share from 0 to 1 of those that are not 0 to begin with."""

    lost: float  # becomes 0
    subnormal: float  # keeps only some of its bits
    kept: float
    overflow: float  # becomes infinite


def shares(gradients, scale=1.0):
    """What becomes of `gradients`, a tensor of any shape, times `scale` in fp16."""
    scaled = (gradients[gradients != 0].float() * scale).half().abs()
    smallest = torch.finfo(torch.float16).smallest_normal
    lost, overflow = scaled == 0, scaled.isinf()
    normal = (scaled >= smallest) & ~overflow
    subnormal = (scaled < smallest) & ~lost
    return Shares(*(part.float().mean().item() for part in (lost, subnormal, normal, overflow)))


def histogram(gradients):
    """{k: share of the gradients, zeros left out, whose absolute value is from 2**k to 2**(k+1)}."""
    powers = gradients[gradients != 0].double().abs().log2().floor().int()
    values, counts = powers.unique(return_counts=True)
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def draw(ax, gradients, log2_scale=0):
    """Draw a histogram of `gradients` times 2**log2_scale, and what fp16 makes of it."""
    bars, parts, said = histogram(gradients), shares(gradients, 2.0**log2_scale), []
    for (words, (low, high, colour)), share in zip(_ZONES.items(), parts, strict=True):
        said.append(f"{words}: {_percent(share)}")
        heights = [100 * bars.get(power - log2_scale, 0) for power in range(low, high)]
        ax.stairs(heights, range(low, high + 1), fill=True, color=colour, label=said[-1])
        ax.axvspan(low, high, color=colour, alpha=0.1, lw=0)
    ax.set(xlim=(_LOW, _HIGH), ylim=(0, 108 * max(bars.values())), ylabel="% of the gradients",
           xlabel="size of a gradient times the scale")
    ax.set_xticks(range(_LOW, _HIGH + 1, 12), [f"2^{power}" for power in range(_LOW, _HIGH + 1, 12)])
    ax.locator_params(axis="y", nbins=4)
    ax.set_title(f"Gradients in fp16, scale 2^{log2_scale} = {2**log2_scale:,}")
    ax.legend(loc="upper left")
    ax.figure.set_label(f"Histogram of gradients times 2 to the {log2_scale}. In fp16: {', '.join(said)}.")


def _percent(share):
    """A single gradient that overflows spoils a step: it must not read 0.0%."""
    return "none" if share == 0 else "under 0.1%" if share < 0.001 else f"{share:.1%}"


def loss_scale_explorer(gradients, log2_scale=0):
    """Loss-scale explorer: choose a scale; the picture shows how it moves the histogram of real gradients,
    and which of them become 0, subnormal or infinite in fp16."""
    figure = Figure(figsize=(9, 3.4), layout="none")
    ax = figure.add_axes((0.08, 0.17, 0.89, 0.73))

    def redraw(log2_scale):
        ax.clear()
        draw(ax, gradients, log2_scale)
        return figure

    controls = {"log2_scale": slider("log2 of the scale", log2_scale, 0, 40)}
    presets = {
        "no scale": ({"log2_scale": 0}, "How much of the histogram lies where fp16 makes it 0?"),
        "GradScaler's first": ({"log2_scale": 16},
                               "65,536 is what GradScaler begins with. What is still lost?"),
        "too much": ({"log2_scale": 40}, "What would the optimizer do with an infinite gradient?"),
    }
    return Explorer(controls, redraw, loss_scale_explorer.__doc__,
                    "A scale moves all bars together. Which scale keeps the most gradients?", presets)
