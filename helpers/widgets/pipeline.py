"""The pipeline simulator: workers load, the device computes; who waits for whom? Models torch's DataLoader.

`simulate` is the model and `draw` the picture. A measurement of `input_pipeline.py` is drawn by the same function.
"""

import html
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg, ticks

#: In the explorer, each of these batches takes STALL times as long to load as the others, where stalls are switched on.
EVERY, STALL = 7, 5

_COMPUTES, _WAITS = "#0072b2", "#f5b78a"
_LOADS = ["#009e73", "#56b4e9", "#cc79a7", "#e69f00", "#7f7f7f"]


@dataclass(frozen=True)
class Timeline:
    """What happened to each batch, or would happen: times in milliseconds from the moment the epoch was asked for."""

    num_workers: int
    loads: list
    """By batch: (worker, begin, end); the worker is 0 where the main process loads."""
    computes: list
    """By batch: (begin, end) of the training step, during which the device is busy."""

    @classmethod
    def measured(cls, row):
        """The timeline in a row that `input_pipeline.py` reported."""
        return cls(row["workers"], [tuple(load) for load in row["loads"]], [tuple(step) for step in row["computes"]])

    @property
    def total(self):
        """Milliseconds until the last step has ended."""
        return self.computes[-1][1]

    @property
    def busy(self):
        """The share of that time, 0 to 1, in which the device computed."""
        return sum(end - begin for begin, end in self.computes) / self.total

    @property
    def waits(self):
        """By batch: (begin, end) of the device's wait for it."""
        return list(zip([0, *(end for _, end in self.computes)], [begin for begin, _ in self.computes], strict=False))


def simulate(num_workers, prefetch_factor=2, load_ms=30.0, compute_ms=20.0, batches=24, start_ms=0.0):
    """The timeline of one epoch, as DataLoader would run it.

    The model: the main process starts the workers one after another, `start_ms` each, and then asks for
    `num_workers * prefetch_factor` batches, dealt out to the workers in turn. Each worker loads its batches one by one.
    The main process takes the batches in order, waits for the next one if it must, asks for one more batch whenever it
    takes one, and computes. Without workers it loads each batch itself, just before it computes. Every worker has a
    core of its own, or loads by waiting for a disk; handing a batch over costs nothing.

    Args:
        num_workers: Workers; 0 for none.
        prefetch_factor: Batches asked for in advance, per worker; without meaning if there is no worker.
        load_ms: Milliseconds that loading a batch takes; or a list of them, by batch.
        compute_ms: Milliseconds of one training step.
        batches: Batches in the epoch; a list in `load_ms` has so many elements.
        start_ms: Milliseconds to start a worker.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message says which.
    """
    loads_ms = _checked(num_workers, prefetch_factor, load_ms, compute_ms, batches, start_ms)
    started = num_workers * start_ms
    loads, computes, now = [], [], started
    free = [started] * num_workers  # when each worker has done what it was given so far
    for batch, duration in enumerate(loads_ms):
        if num_workers == 0:
            worker, begin = 0, now
        else:
            worker, in_advance = batch % num_workers, num_workers * prefetch_factor
            asked = started if batch < in_advance else computes[batch - in_advance][0]
            begin = max(free[worker], asked)
            free[worker] = begin + duration
        loads.append((worker, begin, begin + duration))
        taken = max(now, begin + duration)  # after the step before, and once it is there
        now = taken + compute_ms
        computes.append((taken, now))
    return Timeline(num_workers, loads, computes)


def _checked(num_workers, prefetch_factor, load_ms, compute_ms, batches, start_ms):
    """The loading time of each batch, once all arguments make sense."""
    for name, value, least in (("num_workers", num_workers, 0), ("prefetch_factor", prefetch_factor, 1),
                               ("batches", batches, 1)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number such as 2, not {value!r}")
        if value < least:
            raise ValueError(f"{name} must be {least} or more, not {value}")
    loads = list(load_ms) if isinstance(load_ms, list | tuple) else [load_ms] * batches
    if len(loads) != batches:
        raise ValueError(f"load_ms lists {len(loads)} batches, but there are {batches}")
    for name, value in (("compute_ms", compute_ms), ("start_ms", start_ms), *(("load_ms", load) for load in loads)):
        if not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number of milliseconds, not {value!r}")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be 0 or more, not {value}")
    if max(loads) + compute_ms == 0:
        raise ValueError("load_ms and compute_ms are both 0: there is nothing to see")
    return loads


def stalling(load_ms, batches):
    """Loading times in which every EVERY-th batch takes STALL times as long as the others."""
    return [load_ms * (STALL if batch % EVERY == EVERY - 1 else 1) for batch in range(batches)]


def draw(timeline, title="", until=None):
    """The picture, as SVG: a row for each worker, the batches that lie ready, and the device.

    Args:
        timeline: A `Timeline`, simulated or measured.
        title: Said before the summary; for example "measured here".
        until: Milliseconds at the right edge, so that several pictures have the same scale; at least the total.
    """
    rows, width, left = max(1, timeline.num_workers), 960, 150
    until = max(until or 0, timeline.total)
    scale, high = (width - left - 16) / until, 30 if rows <= 4 else 120 / rows
    summary = f"{timeline.total:,.0f} ms in all; the device is busy {timeline.busy:.0%} of the time"
    title = f"{title}: {summary}" if title else summary
    parts = [f'<text x="10" y="26" font-size="18" font-weight="bold">{html.escape(title)}</text>']

    def bar(begin, end, top, height, colour, label=""):
        wide = (end - begin) * scale
        parts.append(f'<rect x="{left + begin * scale:.1f}" y="{top:.1f}" width="{max(wide - 0.7, 0.5):.1f}" '
                     f'height="{height:.1f}" fill="{colour}"/>')
        if label and wide > 9 * len(label) + 2 and height >= 16:
            parts.append(f'<text x="{left + (begin + end) / 2 * scale:.1f}" y="{top + height / 2 + 5:.1f}" '
                         f'font-size="14" text-anchor="middle">{label}</text>')

    top = 44
    for worker in range(rows):
        if high >= 16 or worker in (0, rows - 1):
            name = f"worker {worker}" if timeline.num_workers else "main: loads"
            parts.append(f'<text x="10" y="{top + worker * high + min(high, 30) / 2 + 5:.1f}">{name}</text>')
    for batch, (worker, begin, end) in enumerate(timeline.loads):
        bar(begin, end, top + worker * high, high - 3, _LOADS[worker % len(_LOADS)], str(batch))
    top += rows * high + 8
    parts += [f'<text x="10" y="{top + 26}">ready</text>', _ready(timeline, left, top, scale)]
    top += 48
    parts.append(f'<text x="10" y="{top + 24}" font-weight="bold">device</text>')
    for begin, end in timeline.waits:
        if end - begin > 0:
            bar(begin, end, top, 36, _WAITS)
    for batch, (begin, end) in enumerate(timeline.computes):
        bar(begin, end, top, 36, _COMPUTES)
        if (end - begin) * scale > 9 * len(str(batch)) + 2:
            parts.append(f'<text x="{left + (begin + end) / 2 * scale:.1f}" y="{top + 23}" font-size="14" fill="#fff" '
                         f'text-anchor="middle">{batch}</text>')
    top += 48
    parts.append(f'<path d="M{left} {top}H{width - 16}" stroke="#333"/>')
    parts += ticks(left, width - 16, top + 20, lambda share: f"{until * share:,.0f} ms")
    top += 32
    for x, colour, words in ((10, _LOADS[0], "loads a batch (its number)"), (270, "#bbb", "batches that lie ready"),
                             (500, _COMPUTES, "device computes"), (690, _WAITS, "device waits")):
        parts.append(f'<rect x="{x}" y="{top}" width="18" height="18" fill="{colour}"/>'
                     f'<text x="{x + 26}" y="{top + 15}">{words}</text>')
    computed = timeline.busy * timeline.total
    return svg(width, top + 28, parts, f"Timeline with {_workers(timeline.num_workers)}: the device computes "
                                       f"{computed:.0f} ms and waits {timeline.total - computed:.0f} ms.")


def _ready(timeline, left, top, scale):
    """Loaded batches that wait for the device, over time, as an area; its height is the most there ever were."""
    changes = [(end, 1) for _, _, end in timeline.loads] + [(begin, -1) for begin, _ in timeline.computes]
    count, points, most = 0, [(0, 0)], 1
    for at, change in sorted(changes, key=lambda change: (change[0], -change[1])):
        points += [(at, count), (at, count + change)]
        count += change
        most = max(most, count)
    path = " ".join(f"{left + at * scale:.1f},{top + 40 - 40 * n / most:.1f}" for at, n in points)
    return (f'<polygon points="{path}" fill="#bbb"/>'
            f'<text x="{left - 8}" y="{top + 26}" font-size="14" text-anchor="end">most: {most}</text>')


def draw_sweep(rows, best=None):
    """Seconds per setting as bars, as SVG.

    Args:
        rows: [(name of the setting, seconds)], in the order of the picture.
        best: The name to be marked.
    """
    longest = max(seconds for _, seconds in rows)
    parts = []
    for number, (name, seconds) in enumerate(rows):
        y, is_best = 8 + 30 * number, name == best
        wide = 500 * seconds / longest
        words = f"{seconds:.2f} s{'  ← best' if is_best else ''}"
        weight, colour = ("bold", COLOURS[0]) if is_best else ("normal", "#9aa5b1")
        parts.append(f'<text x="10" y="{y + 18}" font-weight="{weight}">{html.escape(name)}</text>'
                     f'<rect x="320" y="{y}" width="{wide:.1f}" height="24" fill="{colour}"/>'
                     f'<text x="{328 + wide:.1f}" y="{y + 18}">{words}</text>')
    return svg(960, 16 + 30 * len(rows), parts, f"Bars: the seconds of {len(rows)} settings; the best one is marked.")


def _workers(number):
    return f"{number or 'no'} worker{'s' * (number != 1)}"


def pipeline_explorer(num_workers=0, prefetch_factor=2, load_ms=30, compute_ms=15):
    """Move the workers and the times; see how long the device waits."""
    wide = {"style": {"description_width": "150px"}, "layout": {"width": "600px"}, "continuous_update": True}
    controls = {
        "num_workers": widgets.IntSlider(num_workers, 0, 8, description="num_workers", **wide),
        "prefetch_factor": widgets.IntSlider(prefetch_factor, 1, 8, description="prefetch_factor", **wide),
        "load_ms": widgets.IntSlider(load_ms, 1, 100, description="load a batch, ms", **wide),
        "compute_ms": widgets.IntSlider(compute_ms, 1, 100, description="compute, ms", **wide),
        "start_ms": widgets.IntSlider(10, 0, 200, 10, description="start a worker, ms", **wide),
        "stalls": widgets.Checkbox(False, description=f"every {EVERY}th batch takes {STALL} times as long to load",
                                   indent=False, layout={"width": "600px"}),
    }

    def drawn(num_workers, prefetch_factor, load_ms, compute_ms, start_ms, stalls, batches=24):
        loads = stalling(load_ms, batches) if stalls else load_ms
        return draw(simulate(num_workers, prefetch_factor, loads, compute_ms, batches, start_ms),
                    f"{_workers(num_workers)}, simulated")

    return Explorer(controls, drawn,
                    "Pipeline simulator: set the workers, the batches in advance and the times; the picture shows each "
                    "worker's loading, the batches that lie ready, and when the device computes or waits.")
