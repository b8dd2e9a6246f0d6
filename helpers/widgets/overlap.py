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
    traces = tracing.together([trace if isinstance(trace, tracing.Trace) else tracing.read(trace)
                               for trace in traces])
    if step is not None:
        traces = [trace.step(step) for trace in traces]
    begin = min(trace.span_us[0] for trace in traces)
    until = max(trace.span_us[1] for trace in traces)
    rows, said = {}, [title]
    for place, trace in enumerate(traces):
        seconds, overlap = trace.seconds(), trace.overlap()
        for number, (kind, colour) in enumerate(ACTIVITIES.items()):
            y = 3.5 * place + number
            rows[y] = f"rank {trace.rank}: {kind}" if number == 0 else kind
            # Gaps too thin to be seen are closed: a picture of 10,000 events stays small.
            spans = [((a - begin) / 1000, (b - a) / 1000)
                     for a, b in tracing.union(trace.busy(kind), (until - begin) / 3000)]
            ax.broken_barh(spans, (y - 0.4, 0.8), facecolors=colour, hatch=HATCHES[kind], edgecolors="white",
                           linewidth=0)
            took = f"{1000 * seconds[kind]:,.0f} ms"
            if kind == tracing.COMMUNICATION and overlap is not None:
                took += f", {overlap:.0%} hidden"
            if kind == tracing.WAITING and trace.unpaired:
                took = f"{took} or more"
            ax.text(1.01, y, took, transform=ax.get_yaxis_transform(), va="center")
            said.append(f"rank {trace.rank}: {kind} {took};")
    unpaired = [f"Communication may hold waiting: {traces[0].unpaired}."] if traces[0].unpaired else []
    said += unpaired
    ax.plot([0, (until - begin) / 1000], [0, 0], alpha=0)  # axes that share x end with the last one
    ax.margins(x=0)
    ax.set(ylim=(max(rows) + 0.6, -0.6), xlabel="\n".join(["ms", *textwrap.wrap(" ".join(unpaired), 80)]))
    ax.set_yticks(list(rows), list(rows.values()))
    ax.tick_params(axis="y", length=0)
    ax.label_outer()
    ax.set_title(title)
    ax.figure.set_label(" ".join(filter(None, [ax.figure.get_label(), *said])))
