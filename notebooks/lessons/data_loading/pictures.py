"""What `input_pipeline.py` measured or `simulate` predicts, as a picture: a row for each worker, and the device."""

from helpers.figures import ACTIVITIES, HATCHES
from lessons.data_loading.pipeline_explorer import LOADED


def draw(ax, timeline, title, until=0):
    """Draw a row for each worker, the batches that lie ready, and the device, into empty axes.

    `until` milliseconds are at the right edge, or the total: several pictures can have the same scale.
    """
    names = [f"worker {worker} loads" for worker in range(timeline.num_workers)] or ["main loads"]
    ready = len(names)
    device = ready + 1
    most = max(timeline.ready[1])
    ax.set(xlim=(0, max(until, timeline.total)), ylim=(device + 0.9, -0.6))
    for worker in range(ready):
        loads = {batch: span for batch, (by, *span) in enumerate(timeline.loads) if by == worker}
        _bars(ax, worker, loads.values(), facecolor=LOADED)
        _number(ax, loads, worker)
    _heap(ax, timeline, ready)
    _bars(ax, device, timeline.waits, facecolor=ACTIVITIES["waiting"], hatch=HATCHES["waiting"],
          label="the device waits")
    _bars(ax, device, timeline.computes, facecolor=ACTIVITIES["compute"], label="the device computes")
    _number(ax, dict(enumerate(timeline.computes)), device + 0.62)
    ax.set_yticks([*range(device + 1)], [*names, f"ready: up to {most}", "device"])
    _say(ax, timeline, title, most)


def _bars(ax, row, spans, **look):
    """Bars from each begin to its end. Where some are thin, they have no edges, which would hide what they part."""
    spans = [(begin, end - begin) for begin, end in spans if end > begin]
    _, until = ax.get_xlim()
    is_thin = any(length < until / 200 for _, length in spans)
    ax.broken_barh(spans, (row - 0.4, 0.8), edgecolor="white", linewidth=0 if is_thin else 0.5, **look)


def _number(ax, spans, y):
    """Write the batches' numbers in the middle of their spans, as many as there is room for."""
    _, until = ax.get_xlim()
    apart = until * 14 / (0.8 * 72 * ax.figure.get_figwidth())  # ms that are as wide as two digits
    last = -apart
    for batch, (begin, end) in spans.items():
        middle = (begin + end) / 2
        if middle - last >= apart:
            last = middle
            ax.text(middle, y, f"{batch}", fontsize=9, ha="center", va="center")


def _heap(ax, timeline, row):
    """How many batches lay ready, and when."""
    at, counts = timeline.ready
    bottom = row + 0.4
    scale = 0.8 / max(1, *counts)
    tops = [bottom - scale * count for count in counts]
    ax.fill_between(at, bottom, tops, step="post", color=LOADED, linewidth=0)


def _say(ax, timeline, title, most):
    """All that stands around the rows, and the picture in words."""
    ax.set_xlabel("milliseconds", loc="left")
    ax.set_title(title, loc="left")
    ax.set_title(f"{timeline.total:,.0f} ms; the device is busy {timeline.busy:.0%} of the time", loc="right",
                 fontsize="medium", fontweight="normal")
    below = -0.5 / ax.figure.get_figheight()
    ax.legend(loc="upper right", bbox_to_anchor=(1, below), ncols=2, borderpad=0)
    computed = timeline.busy * timeline.total
    batches = "batch" if most == 1 else "batches"
    ax.figure.set_label(
        f"{title}: a timeline of {len(timeline.computes)} batches. "
        f"The first one is there after {timeline.computes[0][0]:.0f} ms, "
        f"the last step ends after {timeline.total:.0f} ms. "
        f"The device computes for {computed:.0f} ms and waits for {timeline.total - computed:.0f} ms. "
        f"At most {most} {batches} lay ready."
    )
