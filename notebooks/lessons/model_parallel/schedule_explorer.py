"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by GPipe and by 1F1B."""

from matplotlib.figure import Figure

from helpers.widgets.explorer import Explorer, buttons, clock, curtain, slider, wipe
from lessons.model_parallel.schedules import draw, gpipe, one_f_one_b, simulate

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}


def schedule_explorer():
    """Pipeline explorer: set the schedule, the stages and the micro-batches; the picture shows who does what
    when, the share of idle time, and what a rank holds."""
    controls = {
        "schedule": buttons("Schedule", SCHEDULES),
        "stages": slider("Stages", 4, 1, 16),
        "micro_batches": slider("Micro-batches", 8, 1, 32),
        "time": clock(),
    }
    presets = {
        "2 micro-batches": ({"micro_batches": 2, "time": 0}, "Press Play. How many ranks work at the same time?"),
        "12 micro-batches": ({"micro_batches": 12}, "What does rank 0 hold now, and how much of the time is idle?"),
        "1F1B": ({"schedule": "1F1B", "time": 0}, "Press Play. When does rank 0 go backward for the first time?"),
        "8 stages": ({"stages": 8}, "How many micro-batches would make the waiting as short as before?"),
    }
    figure = Figure(figsize=(9, 3.2), layout="none")
    ax = figure.add_axes((0.07, 0.17, 0.92, 0.71))

    def redraw(schedule, stages, micro_batches, time=100):
        timeline = simulate([SCHEDULES[schedule](rank, stages, micro_batches) for rank in range(stages)])
        wipe(ax)
        draw(ax, timeline.starts)
        held = f"{timeline.held[0]} micro-batch{'es' if timeline.held[0] > 1 else ''}"
        ax.set_title(f"{schedule}: idle {timeline.bubble:.0%}, rank 0 holds {held}")
        figure.set_label(f"{schedule} with {stages} stages and {micro_batches} micro-batches: idle "
                         f"{timeline.bubble:.1%} of the time; micro-batches held by rank: {timeline.held}.")
        curtain(ax, time)
        return figure

    return Explorer(controls, redraw, schedule_explorer.__doc__,
                    "Grey is waiting. Where is it: at the beginning, in the middle, at the end?", presets, "time")
