"""The loss-scale explorer: a histogram of real gradients, which a scale moves over what fp16 can hold."""

from functools import partial
from typing import NamedTuple

import torch

from helpers.widgets.shapes import RANKS, Chart, box, ticks, words
from helpers.widgets.stage import Stage, preset, slider

#: What the picture shows: from this power of two up to that one.
LOW, HIGH = -60, 34
#: What fp16 makes of numbers, by size: {words: (from this power of two, up to that one, the colour)}.
ZONES = {"becomes 0": (LOW, -25, RANKS[1]), "subnormal": (-25, -14, RANKS[5]), "kept": (-14, 16, RANKS[0]),
         "overflows": (16, HIGH, RANKS[3])}
SCALES = range(41)


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
    # What becomes 0 is below the smallest normal number, too.
    below = _share(scaled < smallest)
    lost = _share(scaled == 0)
    overflow = _share(scaled.isinf())
    return Shares(lost, below - lost, 1 - below - overflow, overflow)


def _share(those):
    return those.double().mean().item()


def histogram(gradients):
    """{k: share of the gradients, zeros left out, whose absolute value is from 2**k to 2**(k+1)}."""
    powers = gradients[gradients != 0].double().abs().log2().floor().int()
    values, counts = powers.unique(return_counts=True)
    return dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True))


def _percent(share):
    """A single gradient that overflows spoils a step: it must not read 0.0%."""
    if 0 < share < 0.001:
        return "under 0.1%"
    return f"{share:.1%}" if share else "none"


def in_words(gradients, log2_scale):
    """{words of a zone: what share of the gradients times 2**log2_scale lies there}."""
    return dict(zip(ZONES, map(_percent, shares(gradients, 2.0**log2_scale)), strict=True))


def scene(gradients, log2_scale):
    """The histogram of `gradients` times 2**log2_scale, over what fp16 makes of each size."""
    bars = histogram(gradients)
    parts = in_words(gradients, log2_scale)
    most = 1.08 * max(bars.values())
    chart = Chart(
        "chart", 50, 46, 500, 320,
        xs=(LOW, HIGH),
        ys=(0, most),
        xticks={power: f"2^{power}" for power in range(LOW, HIGH, 12)},
        yticks={share: f"{100 * share:g}%" for share in ticks(0, most, 4)},
        xlabel="share of the gradients, by size times the scale",
    )
    listed = ", ".join(f"{zone}: {share}" for zone, share in parts.items())
    frame = {
        "title": f"Gradients in fp16, scale 2^{log2_scale} = {2**log2_scale:,}",
        "note": f"In fp16, {listed}.",
        "alt": f"Histogram of gradients times 2 to the {log2_scale}. In fp16: {listed}.",
        "shapes": [*chart.axes(), *_zones(chart, parts), *_bars(chart, bars, log2_scale)],
    }
    return {"size": (560, 440), "frames": [frame]}


def _zones(chart, parts):
    for zone, (low, high, colour) in ZONES.items():
        x = chart.x(low)
        wide = chart.x(high) - x
        yield box(f"zone {zone}", x, chart.top, wide, chart.height, fill=colour, opacity=0.15, round=0, layer=-1)
        yield words(f"share {zone}", x + wide / 2, chart.top - 20, f"{zone}\n{parts[zone]}", "middle", size=14)


def _bars(chart, bars, log2_scale):
    """A bar for each power of two; and a frame around them, by which one drags them: their place is the scale."""
    wide = chart.x(1) - chart.x(0)
    for power, share in bars.items():
        # What lies outside of the picture stands at its edge.
        place = min(max(power + log2_scale, LOW), HIGH - 1)
        x, y = chart.x(place), chart.y(share)
        yield box(f"bar {power}", x, y, wide - 0.5, chart.y(0) - y, fill=_colour(place), round=0)
    low, high = max(min(bars), LOW), max(bars) + 1
    places = [[chart.x(low + scale), chart.top + 14] for scale in SCALES]
    yield box(
        "grip", *places[log2_scale], wide * (high - low), chart.height - 14,
        fill="#ffffff00",  # there is something to take hold of, though nothing to see
        line="#888888",
        dash=True,
        layer=1,
        tip="drag: the scale",
        drag=("log2_scale", places),
    )


def _colour(power):
    """Of the zone where it lies."""
    for _, high, colour in ZONES.values():
        if power < high:
            return colour


def loss_scale_explorer(gradients, log2_scale=0):
    """Loss-scale explorer: choose a scale; the picture shows how it moves the histogram of real gradients,
    and which of them become 0, subnormal or infinite in fp16."""
    presets = {
        "no scale": preset("How much of the histogram lies where fp16 makes it 0?", log2_scale=0),
        "GradScaler's first": preset("65,536 is what GradScaler begins with. What is still lost?", log2_scale=16),
        "too much": preset("What would the optimizer do with an infinite gradient?", log2_scale=40),
    }
    return Stage("loss_scale_explorer", loss_scale_explorer.__doc__, partial(scene, gradients),
                 {"log2_scale": slider("log2 of the scale", log2_scale, SCALES)},
                 "A scale moves all bars together. Which scale keeps the most gradients?", presets)
