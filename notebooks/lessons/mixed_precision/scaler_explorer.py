"""The scaler explorer: a loss scale over the steps of a training, which overflows halve and good steps double.

`life` is the model, `GRADIENTS` a real training's; the rest makes frames of them.
"""

import math
from typing import NamedTuple

import torch

from helpers.figures import HELD
from helpers.widgets.shapes import RANKS, Chart, box, circle, doing, key, words
from helpers.widgets.stage import Stage, buttons, preset, slider

#: The largest gradient of a weight in each step of a training in fp32, which tests/test_mixed_precision.py repeats.
GRADIENTS = (
    0.034, 0.048, 0.034, 0.032, 0.032, 0.049, 0.033, 0.049, 0.039, 0.041, 0.044, 0.049, 0.064, 0.052, 0.063, 0.051,
    0.050, 0.052, 0.056, 0.056, 0.054, 0.049, 0.068, 0.058,
)
STEPS = range(len(GRADIENTS))
LARGEST = torch.finfo(torch.float16).max
#: From here on a number is nearer to 2**16, which fp16 does not have, than to its largest: it becomes infinite.
OVERFLOWS = (LARGEST + 2**16) / 2
#: torch's own, as is a first scale of 2**16.
GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
DEFAULT_INTERVAL = 2000
INTERVALS = (2, 4, 8, 16, DEFAULT_INTERVAL)
#: log2 of the first scale.
FIRST_SCALES = range(8, 25, 2)
#: What becomes of the gradient of one step: a factor, and whether those of all later steps become that, too.
OUTLIERS = {
    "none": (1, False),
    "× 100": (100, False),
    "× 1000": (1000, False),
    "inf": (math.inf, False),
    "inf from here on": (math.inf, True),
}


class Step(NamedTuple):
    """What a `torch.amp.GradScaler` does in a step of a training."""

    gradient: float  # the largest one, as it is without a scale
    scale: float  # that the loss is multiplied by
    made: bool  # whether `scaler.step` called the optimizer's
    growth_tracker: int  # good steps in a row, after `scaler.update`
    next_scale: float  # after `scaler.update`


def life(gradients, first_scale, growth_interval):
    """The steps of a scaler, from the largest gradient of each step, if gradients are rounded to fp16."""
    steps = []
    scale = first_scale
    tracker = 0
    for gradient in gradients:
        made = becomes_finite(gradient * scale)
        next_scale = scale
        if made:
            tracker += 1
        else:
            next_scale *= BACKOFF_FACTOR
            tracker = 0
        if tracker == growth_interval:
            next_scale *= GROWTH_FACTOR
            tracker = 0
        steps.append(Step(gradient, scale, made, tracker, next_scale))
        scale = next_scale
    return steps


def becomes_finite(number):
    """Whether a positive number is finite in fp16."""
    return number < OVERFLOWS  # neither infinity nor NaN is


def with_outlier(gradients, outlier, at):
    """The gradients, where the one of step `at` is what `outlier` names in `OUTLIERS`."""
    factor, goes_on = OUTLIERS[outlier]
    changed = []
    for step, gradient in enumerate(gradients):
        is_outlier = step == at or (goes_on and step > at)
        changed.append(gradient * factor if is_outlier else gradient)
    return changed


def lost_without_scaler(gradients):
    """In which step an optimizer that nobody guards puts infinities into the weights; None, if in none.

    So it is in bf16, which needs no scale: its largest number is 3.4e38.
    """
    for step, gradient in enumerate(gradients):
        if not math.isfinite(gradient):
            return step
    return None


# ------------------------------------------------------------------------------------------------ the picture

SIZE = [560, 478]
LEFT = 62
#: Of a step's column.
WIDE = 20
RIGHT = LEFT + WIDE * len(STEPS)
#: Powers of two at the ends of the axes; that of scales is longer where the scale falls below.
SCALES = (8, 24)
SCALED = (1, 31)
#: Where finite numbers end at most; infinite ones reach the end of the axis.
FINITE = 28
SCALES_TOP, SCALES_HIGH = 52, 106
SCALED_TOP, SCALED_HIGH = 194, 172
#: The rows that say what became of each step, and how high they are.
ROWS = {"fp16": 390, "bf16": 410}
HIGH = 17
STEP_NUMBERS = 438
LEGEND = 463
#: What became of a step.
MADE = doing("compute")
SKIPPED = doing("waiting")
LOST = {"fill": RANKS[7], "hatch": "xx"}
GRADIENT = HELD["gradients"]
HANDLE = "#264bfb"


def scene(growth_interval, log2_first_scale, outlier, at):
    """A frame before the first step, and one after each."""
    gradients = with_outlier(GRADIENTS, outlier, at)
    steps = life(gradients, 2.0**log2_first_scale, growth_interval)
    lost = lost_without_scaler(gradients)
    low = min(SCALES[0], math.log2(steps[-1].next_scale), *(math.log2(step.scale) for step in steps))
    scales = _scales_chart(low)
    scaled = _scaled_chart()
    fixed = [*scales.axes(), *scaled.axes(), *_limit(scaled), *_around(), *_columns(gradients, outlier, at),
             _first_scale(scales, log2_first_scale)]
    frames = []
    for done in range(len(steps) + 1):
        title, note = _said(steps, done, growth_interval, lost)
        made = sum(step.made for step in steps[:done])
        shapes = [
            *fixed,
            *_counts(steps, done, growth_interval),
            *_line(scales, steps, done),
            *_bars(scaled, steps, done),
            *_fates(steps, done, lost),
        ]
        if outlier != "none":
            shapes.append(_handle(scaled, steps, done, outlier, at))
        scale = _power(_scale_after(steps, done))
        frames.append({
            "title": title,
            "note": note,
            "alt": f"{title}. Made: {made}, skipped: {done - made}, scale {scale}.",
            "shapes": shapes,
        })
    return {"size": SIZE, "pace": 700, "frames": frames, "off": ["at"] if outlier == "none" else []}


def _scale_after(steps, done):
    return steps[done - 1].next_scale if done else steps[0].scale


def _power(scale):
    return f"2^{round(math.log2(scale))}"


def _scales_chart(low):
    ticks = {power: f"2^{power}" for power in range(-32, 25, 8) if power >= low}
    return Chart("scales", LEFT, SCALES_TOP, RIGHT - LEFT, SCALES_HIGH, (0, len(STEPS)), (low, SCALES[1]), {}, ticks)


def _scaled_chart():
    ticks = {8: "2^8", 24: "2^24"}
    return Chart("scaled", LEFT, SCALED_TOP, RIGHT - LEFT, SCALED_HIGH, (0, len(STEPS)), SCALED, {}, ticks)


def _limit(chart):
    """Up to where fp16 has numbers."""
    y = chart.y(math.log2(LARGEST))
    yield words("largest", LEFT - 6, y, f"{LARGEST:,.0f}", "end", size=14, bold=True)
    yield box("limit", LEFT, y - 1, RIGHT - LEFT, 2, fill=RANKS[1], layer=1)


def _around():
    """Headings, names of rows, numbers of steps, and what colours mean."""
    yield words("gradients", LEFT, SCALED_TOP - 14, "largest gradient × scale (fp16 ends at the line)", size=14)
    yield words("rows", LEFT, ROWS["fp16"] - 12, "each step: fp16 with a scaler, bf16 without one", size=14)
    for row, y in ROWS.items():
        yield words(row, LEFT - 6, y + HIGH / 2, row, "end", size=14)
    for step in (*STEPS[::8], STEPS[-1]):
        yield words(f"number {step}", LEFT + WIDE * (step + 0.5), STEP_NUMBERS, str(step), "middle", size=13)
    yield words("step", LEFT - 6, STEP_NUMBERS, "step", "end", size=13)
    yield from key("step made", LEFT, LEGEND, **MADE)
    yield from key("skipped", LEFT + 118, LEGEND, **SKIPPED)
    yield from key("made, weights are lost", LEFT + 216, LEGEND, **LOST)


def _columns(gradients, outlier, at):
    """Where one clicks on a step: there the outlier comes, or goes away."""
    puts = "× 1000" if outlier == "none" else outlier
    for step, gradient in enumerate(gradients):
        click = {"outlier": puts, "at": step}
        tip = f"step {step}: the largest gradient is {gradient:.3g}. Click: {puts}"
        if step == at and outlier != "none":
            click = {"outlier": "none"}
            tip = f"step {step}: click, and the gradient is as it was"
        yield box(f"column {step}", LEFT + WIDE * step, SCALED_TOP, WIDE, SCALED_HIGH, fill="#ffffff00", round=0,
                  tip=tip, click=click, layer=1)


def _first_scale(chart, log2_first_scale):
    """The mark on the axis by which one drags the first scale."""
    middle = chart.x(0.5)
    places = [[middle - 8, chart.y(power) - 8] for power in FIRST_SCALES]
    return circle("first scale", middle, chart.y(log2_first_scale), 8, fill=HANDLE, layer=1,
                  tip="drag: the first scale", drag=("log2_first_scale", places))


def _counts(steps, done, growth_interval):
    """How many steps were made and skipped, the scale, and how far it is to growth."""
    made = sum(step.made for step in steps[:done])
    scale = _scale_after(steps, done)
    tracker = steps[done - 1].growth_tracker if done else 0
    yield words("made", LEFT, 12, f"made {made}", bold=True)
    yield words("skipped", LEFT + 92, 12, f"skipped {done - made}", bold=True)
    yield words("scale", LEFT, 38, f"scale {_power(scale)} = {scale:,.10g}", size=14)
    left = RIGHT - 240
    yield box("tracker", left, 2, 240 * tracker / growth_interval, 20, fill=HANDLE, opacity=0.4)
    yield box("growth", left, 2, 240, 20, text=f"_growth_tracker {tracker} of {growth_interval:,}", size=14)


def _line(chart, steps, done):
    """The scale in each step until now, and the one that comes next."""
    for number, step in enumerate(steps[:done]):
        yield _scale_at(f"scale {number}", chart, number, step.scale)
    if done < len(steps):
        yield {**_scale_at("scale now", chart, done, _scale_after(steps, done)), "fill": HANDLE}


def _scale_at(name, chart, step, scale):
    return box(name, chart.x(step), chart.y(math.log2(scale)) - 2, WIDE, 4, fill="#7f7f7f", round=0)


def _bars(chart, steps, done):
    """The largest gradient of each step, times its scale; those to come are multiplied by the scale of now."""
    for number, step in enumerate(steps):
        look = {"fill": GRADIENT}
        scale = step.scale
        if number >= done:
            look["opacity"] = 0.35
            scale = _scale_after(steps, done)
        elif not step.made:
            look = SKIPPED
        top = _top(chart, step.gradient * scale)
        high = chart.y(SCALED[0]) - top
        yield box(f"bar {number}", chart.x(number) + 1, top, WIDE - 2, high, round=0, **look)


def _top(chart, number):
    """The y of a number; what lies beyond the axis is at its end."""
    low, high = SCALED
    if not math.isfinite(number):
        return chart.y(high)
    return chart.y(min(max(math.log2(number), low), FINITE))


def _fates(steps, done, lost):
    """What became of the steps so far: with a scaler in fp16, and without one in bf16."""
    for number in STEPS:
        x = LEFT + WIDE * number
        looks = {"fp16": {}, "bf16": {}}  # nothing yet: an empty frame
        if number < done:
            looks["fp16"] = MADE if steps[number].made else SKIPPED
            looks["bf16"] = MADE if lost is None or number < lost else LOST
        for row, look in looks.items():
            yield box(f"{row} {number}", x + 1, ROWS[row], WIDE - 2, HIGH, round=0, **look)


def _handle(chart, steps, done, outlier, at):
    """The outlier's mark: how high one drags it is how large it is; to the right of the top: from here on.

    It is beside its bar, on whichever side there is room, and leaves the bar's end and the line to be seen.
    """
    step = steps[at]
    wide, high, farther = 60, 18, 20
    x = LEFT + WIDE * (at + 1)
    if x + wide + farther > RIGHT:
        x -= WIDE + wide

    def top(number):
        return max(_top(chart, number) - high / 2, SCALED_TOP)

    places = []
    for factor, goes_on in OUTLIERS.values():
        places.append([min(x + farther * goes_on, RIGHT - wide), top(GRADIENTS[at] * factor * step.scale)])
    scale = step.scale if at < done else _scale_after(steps, done)
    x, _ = places[list(OUTLIERS).index(outlier)]
    y = top(step.gradient * scale)
    text = "inf →" if OUTLIERS[outlier][1] else outlier
    return box("outlier", x, y, wide, high, text=text, size=14, fill=HANDLE, round=9, layer=1, drag=("outlier", places),
               tip="drag: how large the gradient of this step is")


def _said(steps, done, growth_interval, lost):
    """The title and the note of a frame."""
    if not done:
        return "Before the first step", "A pale bar is a step to come, drawn at the scale of now: it moves with that."
    number = done - 1
    step = steps[number]
    if not step.made:
        title = f"Step {number}: skipped, the scale falls to {_power(step.next_scale)}"
        note = ("scaler.step found an inf and did not call optimizer.step. scaler.update: scale × 0.5 "
                "(backoff_factor), _growth_tracker = 0.")
    elif step.next_scale > step.scale:
        title = f"Step {number}: made, the scale grows to {_power(step.next_scale)}"
        note = (f"scaler.step called optimizer.step. scaler.update: {growth_interval} good steps in a row, so "
                "scale × 2 (growth_factor), _growth_tracker = 0.")
    else:
        title = f"Step {number}: made"
        note = f"scaler.step called optimizer.step. scaler.update: _growth_tracker = {step.growth_tracker}."
    if number == lost:
        note += " bf16, without a scaler: the weights are lost."
    elif step.gradient > 10 * GRADIENTS[number] and lost is None:
        note += f" bf16 makes the step{' too' * step.made}, with a gradient of {step.gradient:.0f}."
    if done == len(steps) and growth_interval > len(steps):
        note += f" The scale grows after {growth_interval:,} good steps in a row; here are {len(steps)} steps in all."
    return title, note


def scaler_explorer():
    """A scale's life: over the steps of a training in fp16, a loss scale is halved by each step that overflows, and
    doubled after some good steps; you choose after how many, and drop an outlier into a gradient."""
    controls = {
        "growth_interval": buttons("growth_interval", 4, [(f"{interval:,}", interval) for interval in INTERVALS]),
        "log2_first_scale": slider("first scale", 16, [(f"2^{power}", power) for power in FIRST_SCALES]),
        "outlier": buttons("outlier", "none", list(OUTLIERS)),
        "at": slider("in step", 6, STEPS),
    }
    presets = {
        "one outlier": preset("The gradient of step 6 is 1,000 times as large; the interval is torch's own. What "
                              "does that cost? Does × 100 cost less?",
                              growth_interval=DEFAULT_INTERVAL, outlier="× 1000"),
        "first scale 2^24": preset("The first scale is too high. How many steps does the scaler need to find that "
                                   "out?", log2_first_scale=24),
        "grow early": preset("Press Play. What does a short interval bring, and what does it cost?",
                             growth_interval=2),
        "inf from step 6": preset("From step 6 on the gradient is infinite before any scale. Compare the rows: "
                                  "who still has weights?", outlier="inf from here on"),
    }
    return Stage("scaler_explorer", scaler_explorer.__doc__, scene, controls,
                 "Press Play. How far does the scale grow, and what ends that? Click a bar to make it an outlier.",
                 presets)
