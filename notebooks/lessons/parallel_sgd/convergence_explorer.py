"""The convergence explorer: workers, sync interval and label skew, from trainings that were really run.

`python -m lessons.parallel_sgd.convergence_explorer` runs them again, and stores their curves.
"""

import math
from typing import NamedTuple

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from helpers import launch
from helpers.places import RECORDS
from helpers.records import store, stored
from helpers.widgets.explorer import Explorer, choice
from lessons.parallel_sgd.shards import labels_of, skewed_split
from lessons.parallel_sgd.task import TASKS

WORKERS = (1, 2, 4, 8)
#: Steps between two averagings; 0 stands for once per epoch.
EVERY = (1, 4, 16, 0)
SKEWS = (0.0, 0.5, 1.0)
EPOCHS = range(1, 6)
PATH = RECORDS / "convergence.json"


class Curve(NamedTuple):
    """One training: what the test says after each epoch."""

    accuracy: list  # of the averaged model
    own: list  # the mean of the workers' own models, just before the last averaging of the epoch
    loss: list
    averagings: int  # in one epoch


def train(workers, every, skew):
    """A `Curve` of the digits, as real ranks of sgd_every_k.py report it."""
    args = ["--every", str(every or 10_000), "--skew", str(skew), "--epochs", str(len(EPOCHS))]
    reports = launch("sgd_every_k.py", workers, args=args, show=False, timeout=600).reports
    epochs = [[rank[epoch] for rank in reports] for epoch in range(len(EPOCHS))]
    shortest = min(map(len, skewed_split(labels_of(TASKS["Digits"]), workers, skew)))
    steps = math.ceil(shortest / TASKS["Digits"].batch)
    return Curve(accuracy=[round(ranks[0]["accuracy"], 5) for ranks in epochs],
                 own=[round(sum(rank["own"] for rank in ranks) / workers, 5) for ranks in epochs],
                 loss=[round(ranks[0]["loss"], 5) for ranks in epochs],
                 averagings=math.ceil(steps / (every or steps)))


def record():
    """Train every setting once, and store the curves."""
    store(PATH, {f"{workers} {every} {skew}": train(workers, every, skew)._asdict()
                 for workers in WORKERS for every in EVERY for skew in SKEWS
                 if workers > 1 or (every, skew) == (0, 0.0)})


def stored_grid():
    """{(workers, every, skew): Curve}. One worker averages with nobody: all its settings are one training."""
    curves = {setting: Curve(**curve) for setting, curve in stored(PATH).items()}
    return {(workers, every, skew): curves[f"{workers} {every} {skew}" if workers > 1 else "1 0 0.0"]
            for workers in WORKERS for every in EVERY for skew in SKEWS}


def in_words(workers, every, skew):
    """What the setting is."""
    if workers == 1:
        return "1 worker: it averages with nobody, and has all the labels"
    how = {0: "once per epoch", 1: "at every step"}.get(every, f"every {every} steps")
    return f"{workers} workers, averaged {how}, {skew:.0%} of the images sorted by label"


def convergence_explorer():
    """Convergence explorer: choose the number of workers, how often they average, and how much of the data is
    sorted by label; the picture shows test accuracy over epochs, from real trainings."""
    grid = stored_grid()
    controls = {
        "workers": choice("Workers", 4, WORKERS),
        "every": choice("Average every", 0, [(str(every or "once per epoch"), every) for every in EVERY]),
        "skew": choice("Label skew", 1.0, [(f"{skew:.0%}", skew) for skew in SKEWS]),
    }
    figure = Figure(figsize=(9, 4.4), layout="none")
    ax = figure.add_axes((0.1, 0.13, 0.6, 0.78))
    others = sorted({tuple(zip(EPOCHS, curve.accuracy, strict=True)) for curve in grid.values()})
    grey = ax.add_collection(LineCollection(others, color="#bbbbbb", linewidth=1, label="all other settings"))
    own, = ax.plot(EPOCHS, [0] * len(EPOCHS), "--", color="C1", label="the workers' own,\nbefore averaging")
    averaged, = ax.plot(EPOCHS, [0] * len(EPOCHS), "o-", color="C0", linewidth=3, label="the averaged model")
    ax.set(ylim=(0, 1), xlim=(0.9, len(EPOCHS) + 0.1), xticks=EPOCHS, ylabel="test accuracy",
           xlabel="epochs (passes over all images, together)")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.legend(handles=[averaged, own, grey], loc="upper left", bbox_to_anchor=(1, 0.75))
    ax.grid(axis="y")
    note = ax.text(1.04, 0.96, "", transform=ax.transAxes, va="top")

    def redraw(workers, every, skew):
        curve, words = grid[workers, every, skew], in_words(workers, every, skew)
        controls["every"].disabled = controls["skew"].disabled = workers == 1  # they would change nothing
        averaged.set_ydata(curve.accuracy)
        own.set_ydata(curve.own)
        ax.set_title(words)
        rounds = f"{curve.averagings} averaging{'s' if curve.averagings > 1 else ''} per epoch"
        if workers == 1:
            rounds = "“Average every” and “Label\nskew” do nothing here"
        note.set_text(f"{curve.accuracy[-1]:.0%} right at the end\n{rounds}")
        figure.set_label(f"{words}. Test accuracy by epoch, of the averaged model: "
                         f"{_listed(curve.accuracy)}; of the workers' own before averaging: "
                         f"{_listed(curve.own)}.")
        return figure

    presets = {
        "at every step": ({"workers": 8, "every": 1},
                          "Compare it with one worker. Does the skew still matter?"),
        "once per epoch": ({"workers": 8},
                           "Compare both lines: what do the workers know before they average?"),
        "no skew": ({"workers": 8, "skew": 0.0}, "Now move “Average every”. How much does it matter?"),
    }
    return Explorer(controls, redraw, convergence_explorer.__doc__,
                    "Compare the averaged model with the workers' own models, just before they average.",
                    presets)


def _listed(shares):
    return ", ".join(f"{share:.0%}" for share in shares)


if __name__ == "__main__":
    record()
