"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by GPipe and by 1F1B."""

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from helpers.widgets.explorer import Explorer, widgets
from lessons.model_parallel.schedules import COST, gpipe, one_f_one_b, simulate

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}


def draw(ax, timeline, title):
    """Draw a `Timeline`: a row for each rank, forwards blue, backwards green."""
    boxes = [(start, rank, COST[what], what) for rank, steps in enumerate(timeline.starts)
             for (what, _), start in steps.items()]
    for what, colour in (("F", "C0"), ("B", "C2")):
        corners = [[(x, y - 0.4), (x + wide, y - 0.4), (x + wide, y + 0.4), (x, y + 0.4)]
                   for x, y, wide, kind in boxes if kind == what]
        ax.add_collection(PolyCollection(corners, facecolor=colour, edgecolor="white", linewidth=0.5))
    ranks = len(timeline.starts)
    ax.set(title=title, xlim=(0, timeline.end), ylim=(ranks - 0.4, -0.6), ylabel="rank",
           xlabel="logical time: blue forward 1, green backward 2")
    ax.set_yticks(range(0, ranks, max(1, ranks // 4)))


def schedule_explorer():
    """Set schedule, stages and micro-batches: the picture shows who does what when, the bubble, and what is held."""
    wide = {"style": {"description_width": "8em"}, "layout": {"width": "30em"}}
    controls = {
        "schedule": widgets.ToggleButtons(options=list(SCHEDULES), description="Schedule",
                                          style={"description_width": "8em"}),
        "stages": widgets.IntSlider(4, 1, 16, description="Stages", **wide),
        "micro_batches": widgets.IntSlider(8, 1, 32, description="Micro-batches", **wide),
    }
    figure = Figure(figsize=(9, 3.2))
    ax = figure.add_subplot()

    def redraw(schedule, stages, micro_batches):
        timeline = simulate([SCHEDULES[schedule](rank, stages, micro_batches) for rank in range(stages)])
        ax.clear()
        held = f"{timeline.held[0]} micro-batch{'es' * (timeline.held[0] > 1)}"
        draw(ax, timeline, f"{schedule}: idle {timeline.bubble:.0%}, rank 0 holds {held}")
        figure.set_label(f"{schedule} with {stages} stages and {micro_batches} micro-batches: idle "
                         f"{timeline.bubble:.1%} of the time; micro-batches held by rank: {timeline.held}.")
        return figure

    return Explorer(controls, redraw, "Pipeline explorer: set the schedule, the stages and the micro-batches; "
                    "the picture shows who does what when, the share of idle time, and what a rank holds.")
