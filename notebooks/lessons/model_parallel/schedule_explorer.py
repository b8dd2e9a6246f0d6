"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by three schedules."""

from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.widgets.explorer import Explorer, buttons, clock, curtain, slider, wipe
from lessons.model_parallel.schedules import (
    COST,
    Timeline,
    gpipe,
    interleaved,
    messages,
    one_f_one_b,
    simulate,
)

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "Interleaved": interleaved}
SHADES = {"F": ACTIVITIES["compute"], "B": "#14267e"}
"""Both compute."""


def draw(ax, starts):
    """A row for each rank of a `Timeline`'s `starts`: forwards, darker backwards, and waiting behind them.

    Numbers are micro-batches; a mark ′ stands for the rank's second stage.
    """
    end = Timeline(starts).end
    numbered = len(starts) * end <= 400
    for rank, steps in enumerate(starts):
        ax.barh(rank, end, 0.7, color=ACTIVITIES["waiting"], hatch=HATCHES["waiting"],
                edgecolor="white", linewidth=0)
        bars = [(start, COST[what]) for (what, *_), start in steps.items()]
        ax.broken_barh(bars, (rank - 0.4, 0.8), facecolors=[SHADES[what] for what, *_ in steps],
                       edgecolor="white", linewidth=0.5)
        for (what, i, *stage), start in steps.items() if numbered else ():
            marks = "′" * (sum(stage) // len(starts))
            ax.text(start + COST[what] / 2, rank, f"{i}{marks}", ha="center", va="center",
                    color="white", fontsize=9)
    ax.set(xlim=(0, end), ylim=(len(starts) - 0.4, -0.6), ylabel="rank",
           xlabel="logical time: a stage's forward takes 1, its backward (darker) 2; dots: waiting")
    ax.set_yticks(range(0, len(starts), max(1, len(starts) // 4)))


def schedule_explorer():
    """Pipeline explorer: set the schedule, the ranks and the micro-batches; the picture shows who does what
    when, the share of idle time, and what a rank holds. Interleaved gives each rank several short stages, and rounds
    the micro-batches up to a multiple of the ranks."""
    controls = {
        "schedule": buttons("Schedule", SCHEDULES),
        "ranks": slider("Ranks", 4, 1, 16),
        "micro_batches": slider("Micro-batches", 8, 1, 32),
        "v": slider("v (interleaved)", 2, 2, 4),
        "time": clock(),
    }
    presets = {
        "2 micro-batches": ({"micro_batches": 2, "time": 0},
                            "Press Play. How many ranks work at the same time?"),
        "12 micro-batches": ({"micro_batches": 12},
                             "What does rank 0 hold now, and how much of the time is idle?"),
        "1F1B": ({"schedule": "1F1B", "time": 0},
                 "Press Play. When does rank 0 go backward for the first time?"),
        "interleaved": ({"schedule": "Interleaved", "time": 0},
                        "Press Play. How long does rank 3 wait at first?"),
    }
    figure = Figure(figsize=(9, 3.2), layout="none")
    ax = figure.add_axes((0.07, 0.17, 0.92, 0.71))

    def redraw(schedule, ranks, micro_batches, v, time=100):
        if schedule == "Interleaved":
            m, stages = -(-micro_batches // ranks) * ranks, (v,)
        else:
            m, stages, v = micro_batches, (), 1
        orders = [SCHEDULES[schedule](rank, ranks, m, *stages) for rank in range(ranks)]
        timeline = simulate(orders)
        held, sent = [steps / v for steps in timeline.held], messages(orders)
        wipe(ax)
        draw(ax, timeline.starts)
        ax.set_title(f"{schedule}, {m} micro-batches: idle {timeline.bubble:.0%}, "
                     f"rank 0 holds {held[0]:.3g}, {sent} messages")
        figure.set_label(f"{schedule} with {ranks} ranks, {v} stages on each, and {m} micro-batches: "
                         f"idle {timeline.bubble:.1%} of the time; "
                         f"micro-batches held by rank: {held}; {sent} messages.")
        curtain(ax, time)
        return figure

    return Explorer(controls, redraw, schedule_explorer.__doc__,
                    "Grey is waiting. Where is it: at the beginning, in the middle, at the end?",
                    presets, "time")
