"""The ring all-reduce, step by step: who holds which partial sum, who sends what to whom, how much in all."""

import itertools
from typing import NamedTuple

import numpy
from matplotlib import colormaps
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures import ACTIVITIES
from helpers.widgets.explorer import Explorer, slider, wipe

BEFORE, REDUCE_SCATTER, ALL_GATHER = "before", "reduce-scatter", "all-gather"
#: Size of the tensor, for the amounts of data.
MEGABYTES = 100


class RingState(NamedTuple):
    """What all ranks hold after one step."""

    phase: str  # BEFORE, REDUCE_SCATTER or ALL_GATHER
    chunks: list  # chunks[rank][chunk]: the list of numbers that the rank holds in that chunk
    summed: list  # summed[rank][chunk]: the set of the ranks whose numbers are summed up in it
    sends: list  # what was sent in the step: [(sender, receiver, chunk)]
    sent: list  # by rank: how many numbers it has sent so far


def ring_states(values):
    """Sum `values`, the numbers of each rank, in a ring; return the state before, and after each step.

    Reduce-scatter: in each step every rank sends a chunk to its right neighbour, which adds it to its own.
    After N-1 steps every rank holds one chunk of the whole sum. All-gather: these go round, N-1 steps again.
    """
    ranks = len(values)
    chunks = [[part.tolist() for part in numpy.array_split(numbers, ranks)] for numbers in values]
    states = [RingState(BEFORE, chunks, [[{rank}] * ranks for rank in range(ranks)], [], [0] * ranks)]
    for step in range(2 * (ranks - 1)):
        phase = REDUCE_SCATTER if step < ranks - 1 else ALL_GATHER
        _, old, whose, _, sent = states[-1]
        chunks, summed, sent = [list(row) for row in old], [list(row) for row in whose], list(sent)
        sends = [(rank, (rank + 1) % ranks, (rank - step) % ranks) for rank in range(ranks)]
        for sender, receiver, chunk in sends:
            chunks[receiver][chunk], summed[receiver][chunk] = old[sender][chunk], whose[sender][chunk]
            if phase == REDUCE_SCATTER:
                pairs = zip(old[receiver][chunk], old[sender][chunk], strict=True)
                chunks[receiver][chunk] = [own + come for own, come in pairs]
                summed[receiver][chunk] = whose[receiver][chunk] | whose[sender][chunk]
            sent[sender] += len(old[sender][chunk])
        states.append(RingState(phase, chunks, summed, sends, sent))
    return states


_HIGH, _WIDE = 0.52, 0.84  # of a box in the picture, in rows and columns


def example(ranks):
    """Numbers that show where they come from: rank 0 holds 1, 2, 3 …, rank 1 holds 10, 20, 30 …"""
    return [[(chunk + 1) * 10**rank for chunk in range(ranks)] for rank in range(ranks)]


def draw(ax, ranks, step):
    """Draw what 2 to 6 ranks hold after a step, a row of chunks for each, and what was sent in it."""
    states = ring_states(example(ranks))
    state = states[step]
    arrived = {(receiver, chunk) for _, receiver, chunk in state.sends}
    cells = list(itertools.product(range(ranks), repeat=2))  # (rank, chunk)
    known = [len(state.summed[rank][chunk]) for rank, chunk in cells]
    ax.add_collection(PatchCollection(
        [Rectangle((chunk - _WIDE / 2, rank - _HIGH / 2), _WIDE, _HIGH) for rank, chunk in cells],
        facecolors=[colormaps["Blues"](0.6 * (count - 1) / (ranks - 1)) for count in known],
        edgecolors=[ACTIVITIES["communication"] if cell in arrived else "#555555" for cell in cells],
        linewidths=[3 if cell in arrived else 1 for cell in cells]))
    for (rank, chunk), count in zip(cells, known, strict=True):
        value, done = state.chunks[rank][chunk][0], count == ranks
        ax.text(chunk, rank, f"{value} ✔" if done else f"{value}", ha="center", va="center",
                fontweight="bold" if done else "normal")
    _arrows(ax, state.sends, ranks)
    for number in range(ranks):
        ax.text(number, -0.75, f"chunk {number}", ha="center", va="bottom")
        ax.text(-0.52, number, f"rank {number}", ha="right", va="center")
    ax.text(-0.5, ranks - 0.2, "darker: more ranks summed up · ✔: the sum of all", va="top")
    ax.set(xlim=(-0.5, ranks - 0.5), ylim=(ranks - 0.2, -0.75))
    ax.set_axis_off()  # ticks would take half of the time
    title = f"Step {step} of {len(states) - 1}: {state.phase}"
    if state.phase == BEFORE:
        title = f"Before: each of {ranks} ranks holds its own numbers, cut into {ranks} chunks"
    ax.set_title(title, x=-0.08, y=1, pad=46)
    ax.annotate(_explained(ranks, step, state), (-0.08, 1), (0, 26), "axes fraction", "offset points")
    ax.figure.set_label(f"Ring all-reduce of {ranks} ranks, step {step} of {len(states) - 1}, {state.phase}: "
                        f"{known.count(ranks)} of {ranks * ranks} chunks hold the whole sum; each rank has "
                        f"sent {state.sent[0] / ranks:.2f} tensors.")


def _explained(ranks, step, state):
    if state.phase == BEFORE:
        return ("Rank 0 holds 1, 2, 3 …; rank 1 holds 10, 20, 30 …: "
                "a sum shows by its digits which ranks are in it.")
    if state.phase == REDUCE_SCATTER:
        end = " Each now holds one finished chunk." if step == ranks - 1 else ""
        return f"Each sent a chunk to its right neighbour, which added it to its own.{end}"
    end = " All ranks hold the whole sum." if step == 2 * (ranks - 1) else ""
    return f"Each passed on a finished chunk; its right neighbour put it in its place.{end}"


def _arrows(ax, sends, ranks):
    """From each sender's box down to the receiver's; from the last rank out at the bottom, in at the top."""
    spans = []  # (x, from y, to y); all of them go down
    for sender, receiver, chunk in sends:
        if receiver > sender:
            spans.append((chunk, sender + _HIGH / 2, receiver - _HIGH / 2))
        else:
            spans += [(chunk, ranks - 1 + _HIGH / 2, ranks - 0.35), (chunk, -0.7, -_HIGH / 2)]
            ax.text(chunk, ranks - 0.5, f"  to rank {receiver}  ", va="center",
                    ha="right" if chunk == ranks - 1 else "left")
    for x, begin, end in spans:
        ax.plot([x, x], [begin, end - 0.1], "-v", color=ACTIVITIES["communication"], linewidth=2.5,
                markersize=7, markevery=[1])


def draw_amounts(ax, ranks, step):
    """Draw how much each rank has sent after a step, beside the end's amount, and the naive way's."""
    sent = ring_states(example(ranks))[step].sent[0] / ranks
    rows = {"sent so far": sent, f"in the end, 2·({ranks}−1)/{ranks}": 2 * (ranks - 1) / ranks,
            "naive, all to all others": ranks - 1}
    bars = ax.barh(range(3), list(rows.values()), color=ACTIVITIES["communication"])
    said = [f"{amount:.2f} tensors, {amount * MEGABYTES:.0f} MB" for amount in rows.values()]
    ax.bar_label(bars, said, padding=6)
    ax.set_yticks(range(3), list(rows))
    ax.set(xlim=(0, 1.45 * max(rows.values())), ylim=(2.6, -0.6))
    ax.set_title(f"Sent by each rank, of a tensor of {MEGABYTES} MB")


def ring_explorer():
    """Ring all-reduce: set the number of ranks and go through the steps; the picture shows each rank's chunks
    with their partial sums, what is sent in the step, and how much each rank has sent."""
    ranks, step = slider("ranks", 4, 2, 6), slider("step", 2, 0, 6)
    presets = {
        "2 ranks": ({"ranks": 2, "step": 0}, "Press Play. What does each step move, and in which direction?"),
        "half-way": ({"step": 3},
                     "Look for the ticks: how many chunks of the whole sum does each rank hold now?"),
        "6 ranks": ({"ranks": 6, "step": 0},
                    "Press Play. There are more steps now. How much has each rank sent in the end?"),
    }
    ranks.observe(lambda change: setattr(step, "max", 2 * (change["new"] - 1)), names="value")
    figure = Figure(figsize=(9, 5.4), layout="none")
    ring, amounts = figure.add_axes((0.08, 0.31, 0.91, 0.53)), figure.add_axes((0.24, 0.02, 0.75, 0.18))
    amounts.spines[:].set_visible(False)
    amounts.xaxis.set_visible(False)
    amounts.tick_params(length=0)

    def redraw(ranks, step):
        wipe(ring, amounts)
        draw(ring, ranks, step)
        draw_amounts(amounts, ranks, step)
        return figure

    return Explorer({"ranks": ranks, "step": step}, redraw, ring_explorer.__doc__,
                    "A red frame marks a chunk that has just arrived. Which ranks are in its sum?",
                    presets, "step")
