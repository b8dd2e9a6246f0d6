"""The pipeline simulator: workers load, the device computes; who waits for whom? Models torch's DataLoader.

`simulate` is the model and `draw` the picture, which also draws what `input_pipeline.py` measured.
"""

from collections import Counter
from itertools import accumulate
from typing import NamedTuple

from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.widgets.explorer import Explorer, clock, curtain, slider, wipe

#: Each of these batches takes longer to load than the others, where there are stalls.
EVERY = 7
#: Loading is the computing of the CPU: a light shade of its colour, also for the batches that lie ready.
LOADED = "#7088fd"


class Timeline(NamedTuple):
    """What happened to each batch, or would happen: times in milliseconds since the epoch was asked for."""

    num_workers: int
    loads: list  # by batch: (worker, begin, end); the worker is 0 where the main process loads
    computes: list  # by batch: (begin, end) of the training step, during which the device is busy

    @classmethod
    def measured(cls, row):
        """The timeline in a row that `input_pipeline.py` reported."""
        return cls(row["workers"], row["loads"], row["computes"])

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
        begins, ends = zip(*self.computes, strict=True)
        return list(zip([0, *ends[:-1]], begins, strict=True))


def simulate(num_workers, prefetch_factor=2, load_ms=30.0, compute_ms=20.0, batches=24, start_ms=0.0):
    """The timeline of one epoch, as DataLoader would run it.

    The main process starts the workers one after another, `start_ms` each. Then it asks for
    `num_workers * prefetch_factor` batches, which it gives out to the workers in turn. Each worker loads its
    batches one by one, in `load_ms`, which may be a list, by batch. The main process takes the batches in
    order, asks for one more whenever it takes one, and computes. Without workers it loads each batch itself,
    just before it computes. The model assumes that a worker has a core, or waits for a disk, and that handing
    a batch over costs nothing.
    """
    durations = load_ms if isinstance(load_ms, list) else [load_ms] * batches
    started = num_workers * start_ms
    loads, computes, now = [], [], started
    free = [started] * num_workers  # when each worker has done what it was given so far
    for batch, duration in enumerate(durations):
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


def stalling(load_ms, batches, times=5):
    """Loading times in which every EVERY-th batch takes `times` times as long as the others."""
    return [times * load_ms if batch % EVERY == EVERY - 1 else load_ms for batch in range(batches)]


def draw(ax, timeline, title, until=0):
    """Draw a row for each worker, the batches that lie ready, and the device, into empty axes.

    `until` milliseconds are at the right edge, or the total: several pictures can have the same scale.
    """
    rows, until = max(1, timeline.num_workers), max(until, timeline.total)
    ready, device = rows, rows + 1
    names = [f"worker {worker} loads" for worker in range(timeline.num_workers)] or ["main loads"]

    def bars(row, spans, colour, **how):
        spans = [(begin, end - begin) for begin, end in spans if end > begin]
        thin = any(length < until / 200 for _, length in spans)  # edges would hide what they part
        ax.broken_barh(spans, (row - 0.4, 0.8), facecolor=colour, edgecolor="white",
                       linewidth=0 if thin else 0.5, **how)

    for worker in range(rows):
        own = {batch: span for batch, (by, *span) in enumerate(timeline.loads) if by == worker}
        bars(worker, own.values(), LOADED)
        _number(ax, own, worker, until)
    at, counts = _ready(timeline)
    most = max(counts)
    tops = [ready + 0.4 - 0.8 * count / max(most, 1) for count in counts]
    ax.fill_between(at, ready + 0.4, tops, step="post", color=LOADED, linewidth=0)
    bars(device, timeline.waits, ACTIVITIES["waiting"], hatch=HATCHES["waiting"], label="the device waits")
    bars(device, timeline.computes, ACTIVITIES["compute"], label="the device computes")
    _number(ax, dict(enumerate(timeline.computes)), device + 0.62, until)

    ax.set_yticks([*range(rows), ready, device], [*names, f"ready: up to {most}", "device"])
    ax.set(xlim=(0, until), ylim=(device + 0.9, -0.6))
    ax.set_xlabel("milliseconds", loc="left")
    ax.set_title(title, loc="left")
    ax.set_title(f"{timeline.total:,.0f} ms; the device is busy {timeline.busy:.0%} of the time", loc="right",
                 fontsize="medium", fontweight="normal")
    if ax.get_legend() is None:
        below = -0.5 / ax.figure.get_figheight()
        ax.legend(loc="upper right", bbox_to_anchor=(1, below), ncols=2, borderpad=0)
    computed = timeline.busy * timeline.total
    ax.figure.set_label(
        f"{title}: a timeline of {len(timeline.computes)} batches. The first one is there after "
        f"{timeline.computes[0][0]:.0f} ms, the last step ends after {timeline.total:.0f} ms. The device "
        f"computes for {computed:.0f} ms and waits for {timeline.total - computed:.0f} ms. "
        f"At most {most} batch{'' if most == 1 else 'es'} lay ready.")


def _ready(timeline):
    """When the number of loaded batches that wait for the device changes, and what it changes to."""
    if not timeline.num_workers:
        return [0], [0]  # each batch is handed over as soon as it is loaded
    changes = Counter(end for _, _, end in timeline.loads)
    changes.subtract(begin for begin, _ in timeline.computes)
    at = sorted(changes)
    return [0, *at], [0, *accumulate(changes[moment] for moment in at)]


def _number(ax, spans, y, until):
    """Write the batches' numbers in the middle of their spans, as many as there is room for."""
    apart = until * 14 / (0.8 * 72 * ax.figure.get_figwidth())  # ms that are as wide as two digits
    last = -apart
    for batch, (begin, end) in spans.items():
        if (begin + end) / 2 - last >= apart:
            last = (begin + end) / 2
            ax.text(last, y, str(batch), fontsize=9, ha="center", va="center")


def pipeline_explorer(num_workers=3, prefetch_factor=2):
    """Pipeline simulator: set the workers, the batches in advance and the times; the picture shows each
    worker's loading, the batches that lie ready, and when the device computes or waits."""
    controls = {
        "num_workers": slider("num_workers", num_workers, 0, 8),
        "prefetch_factor": slider("prefetch_factor", prefetch_factor, 1, 8),
        "load_ms": slider("load a batch, ms", 20, 1, 100),
        "stall": slider(f"every {EVERY}th takes × as long", 8, 1, 10),
        "compute_ms": slider("compute, ms", 14, 1, 100),
        "time": clock(),
    }
    presets = {
        "no workers": ({"num_workers": 0, "time": 0}, "Press Play. Do loading and computing overlap?"),
        "one straggler": ({"prefetch_factor": 1, "time": 0},
                          "Press Play. What do the other workers do while one loads a slow batch?"),
        "more in advance": ({"prefetch_factor": 8}, "Look at the row of ready batches. What do they bridge?"),
        "slow loading": ({"load_ms": 60, "stall": 1},
                         "The device waits. Does it help to raise prefetch_factor?"),
    }
    figure = Figure(figsize=(9, 4), layout="none")
    ax = figure.add_axes((0.17, 0.16, 0.81, 0.76))
    note = figure.text(0.01, 0.02, "", fontsize="small")

    def redraw(num_workers, prefetch_factor, load_ms, stall, compute_ms, time=100):
        loads = stalling(load_ms, 24, stall)
        timeline, most = (simulate(num_workers, factor, loads, compute_ms, start_ms=10)
                          for factor in (prefetch_factor, controls["prefetch_factor"].max))
        wipe(ax)
        draw(ax, timeline, f"{num_workers or 'no'} worker{'' if num_workers == 1 else 's'}, simulated")
        curtain(ax, time)
        enough = timeline.total <= most.total
        note.set_text("A larger prefetch_factor changes nothing here." if enough else "")
        figure.set_label(f"{figure.get_label()} {note.get_text()}".rstrip())
        return figure

    return Explorer(controls, redraw, pipeline_explorer.__doc__,
                    "Find the grey parts of the last row: the device waits there. For whom?", presets, "time")
