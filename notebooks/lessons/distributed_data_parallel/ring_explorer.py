"""The ring all-reduce: ranks in a circle, each with its chunks, which travel to the right neighbour."""

import math
from typing import NamedTuple

import numpy

from helpers.figures import ACTIVITIES
from helpers.widgets.shapes import box, path, words
from helpers.widgets.stage import Stage, preset, slider

BEFORE, REDUCE_SCATTER, ALL_GATHER = "before", "reduce-scatter", "all-gather"
#: From one rank's number in a chunk to the sum of all.
BLUES = ("#ffffff", "#dbe9f6", "#bad6eb", "#89bedc", "#539ecd", "#2b7bba")
SIZE = (560, 460)
CENTRE = (280, 238)
RADIUS = (205, 146)
WIDE, HIGH = 84, 20  #: of a chunk


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


def example(ranks):
    """Numbers that show where they come from: rank 0 holds 1, 2, 3 …, rank 1 holds 10, 20, 30 …"""
    return [[(chunk + 1) * 10**rank for chunk in range(ranks)] for rank in range(ranks)]


def scene(ranks):
    """A frame before the ring's first step, and one after each."""
    states = ring_states(example(ranks))
    frames = []
    for step, state in enumerate(states):
        shapes = _circle(ranks)
        arrived = {(receiver, chunk) for _, receiver, chunk in state.sends}
        for rank in range(ranks):
            x, y = _corner(rank, ranks)
            shapes.append(words(f"rank {rank}", x + WIDE / 2, y - 12, f"rank {rank}", "middle", bold=True))
            for chunk in range(ranks):
                shapes.append(_cell(state, ranks, rank, chunk, (rank, chunk) in arrived))
        if step:
            shapes += _messages(states[step - 1], state, ranks)
        sent = state.sent[0] / ranks
        shapes.append(words("sent", *CENTRE, f"each rank\nhas sent\n{sent:.2f} tensors", "middle"))
        title = f"Step {step} of {len(states) - 1}: {state.phase}"
        if state.phase == BEFORE:
            title = f"Before: each of {ranks} ranks holds its own numbers, cut into {ranks} chunks"
        frames.append({"title": title, "note": _explained(ranks, step, state), "shapes": shapes,
                       "alt": f"Ring all-reduce of {ranks} ranks, step {step} of {len(states) - 1}, {state.phase}: "
                              f"{_finished_chunks(state, ranks)} of {ranks * ranks} chunks hold the whole sum; each "
                              f"rank has sent {sent:.2f} tensors."})
    return {"size": SIZE, "pace": 1400, "frames": frames}


def _angle(place, ranks):
    """Where a rank stands on the circle, in radians: rank 0 at the top, or at the left of two."""
    return 2 * math.pi * place / ranks - (math.pi if ranks == 2 else math.pi / 2)


def _on_circle(angle):
    return CENTRE[0] + RADIUS[0] * math.cos(angle), CENTRE[1] + RADIUS[1] * math.sin(angle)


def _corner(rank, ranks):
    """The upper left corner of a rank's column of chunks."""
    x, y = _on_circle(_angle(rank, ranks))
    return x - WIDE / 2, y - HIGH * ranks / 2 + 8


def _circle(ranks):
    """An arrow from each rank to its right neighbour, behind all."""
    arrows = []
    for rank in range(ranks):
        begin, end = _angle(rank, ranks), _angle(rank + 1, ranks)
        points = [_on_circle(begin + (end - begin) * share / 12) for share in range(13)]
        arrows.append(path(f"arrow {rank}", points[:8], arrow=True, width=2, opacity=0.4, layer=-1))
        arrows.append(path(f"way {rank}", points[7:], width=2, opacity=0.4, layer=-1))
    return arrows


def _cell(state, ranks, rank, chunk, arrived):
    x, y = _corner(rank, ranks)
    whose = sorted(state.summed[rank][chunk])
    done = len(whose) == ranks
    look = {"line": ACTIVITIES["communication"], "width": 3} if arrived else {"line": "#777777"}
    return box(f"{rank}/{chunk}", x, y + HIGH * chunk, WIDE, HIGH - 2, size=14, bold=done, late=arrived,
               fill=BLUES[round(5 * (len(whose) - 1) / (ranks - 1))],
               text=f"{state.chunks[rank][chunk][0]}{' ✔' if done else ''}",
               tip=f"chunk {chunk}, summed over rank{'s' * (len(whose) > 1)} {', '.join(map(str, whose))}", **look)


def _messages(before, state, ranks):
    """What travels in a step, from the sender's chunk to the receiver's."""
    for sender, receiver, chunk in state.sends:
        (x, y), (to_x, to_y) = _corner(sender, ranks), _corner(receiver, ranks)
        sign = "+" if state.phase == REDUCE_SCATTER else ""
        yield box(f"message {sender}", to_x, to_y + HIGH * chunk, WIDE, HIGH - 2, size=14, layer=1, passes=True,
                  fill=ACTIVITIES["communication"], text=f"{sign}{before.chunks[sender][chunk][0]}",
                  **{"from": {"x": x, "y": y + HIGH * chunk}})


def _finished_chunks(state, ranks):
    return sum(len(whose) == ranks for row in state.summed for whose in row)


def _explained(ranks, step, state):
    if state.phase == BEFORE:
        return "Rank 0 holds 1, 2, 3 …; rank 1 holds 10, 20, 30 …: a sum shows by its digits which ranks are in it."
    if state.phase == REDUCE_SCATTER:
        end = " Each now holds one finished chunk (✔)." if step == ranks - 1 else ""
        return f"Each sent a chunk clockwise to its right neighbour, which added it to its own.{end}"
    if step == 2 * (ranks - 1):
        amount = 2 * (ranks - 1) / ranks
        return (f"All ranks hold the whole sum. Each has sent 2·({ranks}−1)/{ranks} = {amount:.2f} tensors; "
                f"to send its own to all others would be {ranks - 1}.")
    return "Each passed on a finished chunk, and its right neighbour put it in its place."


def ring_explorer():
    """Ring all-reduce: ranks in a circle; step by step each sends a chunk to its right neighbour, until all hold the
    whole sum."""
    return Stage("ring_explorer", ring_explorer.__doc__, scene, {"ranks": slider("ranks", 4, range(2, 7))},
                 look="A red frame marks a chunk that has just arrived. Which ranks are in its sum?",
                 presets={
                     "2 ranks": preset("Press Play. What does each step move, and in which direction?", ranks=2),
                     "half-way": preset("Look for the ticks: how many chunks of the whole sum does each rank hold now?",
                                        frame=3),
                     "6 ranks": preset("Press Play. There are more steps now. How much has each rank sent in the end?",
                                       ranks=6),
                 }, still=2)
