"""What a pipeline's ranks did when, as a picture."""

from helpers.figures import ACTIVITIES, HATCHES
from lessons.model_parallel.schedules import COST, Timeline

SHADES = {"F": ACTIVITIES["compute"], "B": "#14267e"}
"""Both compute."""


def draw(ax, starts):
    """A row for each rank of a `Timeline`'s `starts`: forwards, darker backwards, and waiting behind them.

    Numbers are micro-batches; a mark ′ stands for the rank's second stage.
    """
    end = Timeline(starts).end
    for rank, steps in enumerate(starts):
        ax.barh(rank, end, 0.7, color=ACTIVITIES["waiting"], hatch=HATCHES["waiting"],
                edgecolor="white", linewidth=0)
        bars = [(start, COST[what]) for (what, *_), start in steps.items()]
        ax.broken_barh(bars, (rank - 0.4, 0.8), facecolors=[SHADES[what] for what, *_ in steps],
                       edgecolor="white", linewidth=0.5)
        for (what, i, *stage), start in steps.items():
            marks = "′" * (sum(stage) // len(starts))
            ax.text(start + COST[what] / 2, rank, f"{i}{marks}", ha="center", va="center",
                    color="white", fontsize=9)
    ax.set(xlim=(0, end), ylim=(len(starts) - 0.4, -0.6), ylabel="rank",
           xlabel="logical time: a stage's forward takes 1, its backward (darker) 2; dots: waiting")
    ax.set_yticks(range(len(starts)))
