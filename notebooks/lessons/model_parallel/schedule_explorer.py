"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by GPipe and by 1F1B."""

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.widgets.explorer import Explorer, buttons, slider, wipe
from lessons.model_parallel.schedules import draw, gpipe, one_f_one_b, simulate

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}
<<<<<<< HEAD
#: Both are computing: a backward is the darker one.
SHADES = {"F": 0.7, "B": 1}
=======
>>>>>>> 48f534b (WIP: model parallelism in plain words; the dry run keeps what a GPU's norm keeps)


def schedule_explorer():
    """Pipeline explorer: set the schedule, the stages and the micro-batches; the picture shows what each rank does
    when, the share of idle time, and what a rank holds."""
    controls = {
        "schedule": buttons("Schedule", SCHEDULES),
        "stages": slider("Stages", 4, 1, 16),
        "micro_batches": slider("Micro-batches", 8, 1, 32),
    }
    figure = Figure(figsize=(9, 3.2), layout="none")
    ax = figure.add_axes((0.07, 0.17, 0.92, 0.71))
<<<<<<< HEAD
    ax.set(xlabel="logical time: a forward takes 1, a backward (darker) 2; dotted: idle", ylabel="rank")
=======
>>>>>>> 48f534b (WIP: model parallelism in plain words; the dry run keeps what a GPU's norm keeps)

    def redraw(schedule, stages, micro_batches):
        timeline = simulate([SCHEDULES[schedule](rank, stages, micro_batches) for rank in range(stages)])
        wipe(ax)
<<<<<<< HEAD
        for rank, steps in enumerate(timeline.starts):
            ax.broken_barh([(0, timeline.end)], (rank - 0.4, 0.8), facecolor=ACTIVITIES["waiting"], edgecolor="white",
                           hatch=HATCHES["waiting"], linewidth=0)
            bars = [(start, COST[what]) for (what, _), start in steps.items()]
            colours = [to_rgba(ACTIVITIES["compute"], SHADES[what]) for what, _ in steps]
            ax.broken_barh(bars, (rank - 0.4, 0.8), facecolors="white")
            ax.broken_barh(bars, (rank - 0.4, 0.8), facecolors=colours, edgecolor="white", linewidth=0.5)
            if stages * micro_batches <= 64:  # more of them would not be readable
                for (what, i), start in steps.items():
                    ax.text(start + COST[what] / 2, rank, i, ha="center", va="center", color="white", size=10)
        ax.set(xlim=(0, timeline.end), ylim=(stages - 0.4, -0.6))
        ax.set_yticks(range(0, stages, max(1, stages // 4)))
=======
        draw(ax, timeline.starts)
>>>>>>> 48f534b (WIP: model parallelism in plain words; the dry run keeps what a GPU's norm keeps)
        held = f"{timeline.held[0]} micro-batch{'es' if timeline.held[0] > 1 else ''}"
        ax.set_title(f"{schedule}: idle {timeline.bubble:.0%}, rank 0 holds {held}")
        figure.set_label(f"{schedule} with {stages} stages and {micro_batches} micro-batches: idle "
                         f"{timeline.bubble:.1%} of the time; micro-batches held by rank: {timeline.held}.")
        return figure

    return Explorer(controls, redraw, schedule_explorer.__doc__)
