"""Communication behind compute, as real traces show it."""

import textwrap

from helpers.figures import ACTIVITIES, HATCHES
from helpers.instruments import traces as tracing


def draw_overlap(ax, traces, title="When each rank computed, communicated and waited", step=None):
    """Draw when each rank computed, communicated and waited, and beside it how long in all.

    Args:
        traces: One `Trace` per rank, or the paths of their files.
        step: The number of the profiler's step to show, each rank's own; None for all that was recorded.

    Where the traces do not tell how much of the communication was waiting, the picture says why.
    """
    traces = [trace if isinstance(trace, tracing.Trace) else tracing.read(trace) for trace in traces]
    traces = tracing.together(traces)
    if step is not None:
        traces = [trace.step(step) for trace in traces]
    begin_us = min(trace.span_us[0] for trace in traces)
    end_us = max(trace.span_us[1] for trace in traces)
    span_us = end_us - begin_us

    names = {}  # of the rows, by their heights
    sentences = [title]
    for place, trace in enumerate(traces):
        for number, (kind, colour) in enumerate(ACTIVITIES.items()):
            y = 3.5 * place + number
            names[y] = f"rank {trace.rank}: {kind}" if number == 0 else kind
            bars = []
            # Gaps too thin to be seen are closed: a picture of 10,000 events stays small.
            for begin, end in tracing.union(trace.busy(kind), gap=span_us / 3000):
                bars.append(((begin - begin_us) / 1000, (end - begin) / 1000))
            ax.broken_barh(bars, (y - 0.4, 0.8), facecolors=colour, hatch=HATCHES[kind], edgecolors="white",
                           linewidth=0)
            took = _how_long(trace, kind)
            ax.text(1.01, y, took, transform=ax.get_yaxis_transform(), va="center")
            sentences.append(f"rank {trace.rank}: {kind} {took};")

    xlabel = "ms"
    if traces[0].unpaired:  # of all of them the same
        caution = f"Communication may hold waiting: {traces[0].unpaired}."
        sentences.append(caution)
        xlabel += "\n" + textwrap.fill(caution, 80)
    ax.plot([0, span_us / 1000], [0, 0], alpha=0)  # axes that share x end with the last one
    ax.margins(x=0)
    ax.set(ylim=(max(names) + 0.6, -0.6), xlabel=xlabel)
    ax.set_yticks(list(names), list(names.values()))
    ax.tick_params(axis="y", length=0)
    ax.label_outer()
    ax.set_title(title)
    ax.figure.set_label(" ".join(filter(None, [ax.figure.get_label(), *sentences])))


def _how_long(trace, kind):
    """What stands beside a row: "120 ms, 80% hidden"."""
    took = f"{1000 * trace.seconds()[kind]:,.0f} ms"
    if kind == tracing.COMMUNICATION and trace.overlap() is not None:
        took += f", {trace.overlap():.0%} hidden"
    if kind == tracing.WAITING and trace.unpaired:
        took += " or more"
    return took
