"""What `input_pipeline.py` measured or `simulate` predicts, as a picture: a row for each worker, and the device."""

from helpers.figures import ACTIVITIES, HATCHES
from lessons.data_loading.pipeline_explorer import LOADED


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
    at, counts = timeline.ready
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


def _number(ax, spans, y, until):
    """Write the batches' numbers in the middle of their spans, as many as there is room for."""
    apart = until * 14 / (0.8 * 72 * ax.figure.get_figwidth())  # ms that are as wide as two digits
    last = -apart
    for batch, (begin, end) in spans.items():
        if (begin + end) / 2 - last >= apart:
            last = (begin + end) / 2
            ax.text(last, y, str(batch), fontsize=9, ha="center", va="center")
