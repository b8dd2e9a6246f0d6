"""The pairs explorer: a ring of ranks, and the square of all pairs of a query and a key.

The keys travel from rank to rank. Between two moves the square fills with the pairs that each rank can compute, and
bars grow in lanes of time.
"""

import math
from typing import NamedTuple

from helpers.widgets.shapes import RANKS, Lanes, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from lessons.context_and_experts.cuts import CUTS

TOKENS = 64
#: The square of all pairs.
LEFT = 22
TOP = 40
SIDE = 224
#: The ring, which is wider than high.
RING_X = 411
RING_Y = 152
RING_WIDE = 112
RING_HIGH = 88
#: A rank's box on the ring; that of its keys is below, and as large.
WIDE = 60
HIGH = 23


class Block(NamedTuple):
    """Pairs that a rank computes one after the other: queries of one piece of the sequence, keys of another one."""

    rank: int
    row: int  # the queries' piece; there are two of each rank
    column: int  # the keys' piece
    begin: int  # in time, which is counted in pairs
    end: int


class Step(NamedTuple):
    """What the ranks compute until the keys travel on."""

    begin: int
    end: int
    ready: list  # by rank: when it has nothing left to compute, and waits
    blocks: list


def piece_for(ranks):
    """So many tokens are in each of 2 · ranks equal pieces of about `TOKENS`."""
    return TOKENS // (2 * ranks)


def owners(cut, ranks):
    """For each rank, its two pieces: a cut of 2 · ranks tokens is one of as many pieces, too."""
    return [pieces.tolist() for pieces in CUTS[cut](2 * ranks, ranks)]


def ring(cut, ranks):
    """The steps of the ring. Each takes as long as its slowest rank; sending takes no time."""
    where = owners(cut, ranks)
    steps = []
    begin = 0
    for step in range(ranks):
        ready = [begin] * ranks
        blocks = []
        for rank in range(ranks):
            # The keys have come `step` ranks far.
            keys = where[(rank - step) % ranks]
            for block in _computed(rank, where[rank], keys, begin, piece_for(ranks)):
                ready[rank] = block.end
                blocks.append(block)
        steps.append(Step(begin, max(ready), ready, blocks))
        begin = max(ready)
    return steps


def _computed(rank, queries, keys, clock, piece):
    """The blocks that a rank computes with the keys that it holds, from the time `clock` on."""
    for column in keys:
        for row in queries:
            if row < column:  # no query looks ahead
                continue
            pairs = piece**2
            if row == column:  # half of it is masked
                pairs = piece * (piece + 1) // 2
            yield Block(rank, row, column, clock, clock + pairs)
            clock += pairs


def scene(cut, ranks):
    """Two frames for each step, and one for each time that the keys travel."""
    steps = ring(cut, ranks)
    lanes = _lanes(ranks)
    spans = list(_spans(steps))
    fixed = [*lanes.shapes(), *_square(owners(cut, ranks)), *_ring(ranks)]
    frames = []
    for number, now in _moments(steps):
        done = _done(steps, ranks, now)
        waited = 1 - sum(done) / (ranks * now) if now else 0
        title, note = _said(steps, number, now)
        shapes = [
            *fixed,
            *lanes.bars(spans, now),
            *_pairs(steps, number, now),
            *_ranks(steps[number], now),
            *_keys(number, ranks),
            words("waiting", RING_X, 10, f"step {number + 1} of {ranks}, waiting {waited:.0%}", "middle", size=14),
        ]
        frames.append({
            "title": title,
            "note": note,
            "alt": f"{title}. Pairs by rank so far: {done}; the ranks have waited for {waited:.0%} of the time.",
            "shapes": shapes,
        })
    return {"size": [560, 444], "axis": lanes.axis, "flows": True, "pace": 800, "frames": frames}


def _lanes(ranks):
    names = [f"rank {rank}" for rank in range(ranks)]
    # As long as a contiguous cut takes, so that zigzag is seen to be shorter.
    end = 4 * ranks * piece_for(ranks)**2
    high = min(28, 118 / ranks)
    return Lanes(names, end, x=66, y=284, w=474, row=high, gap=2, unit="time, in pairs of a query and a key")


def _spans(steps):
    """For the lanes: in each step what a rank computes, and then how long it waits for the slowest."""
    for number, step in enumerate(steps):
        for rank, ready in enumerate(step.ready):
            if ready > step.begin:
                work = {"fill": RANKS[rank], "text": str(ready - step.begin)}
                yield f"work {rank}/{number}", rank, step.begin, ready, work
            if ready < step.end:
                yield f"wait {rank}/{number}", rank, ready, step.end, doing("waiting")


def _square(where):
    """The frame of the square: whose queries lie in which row, whose keys in which column."""
    high = SIDE / (2 * len(where))
    bottom = TOP + SIDE
    corners = [LEFT, TOP], [LEFT, bottom], [LEFT + SIDE, bottom]
    yield words("axes", 3, 10, "queries ↓ and keys → by rank", size=14)
    yield path("all pairs", corners, fill="#888888", opacity=0.2, layer=-1)
    yield words("masked", 179, 96, "later keys:\nmasked", "middle", size=14)
    for rank, pieces in enumerate(where):
        look = {"fill": RANKS[rank], "text": str(rank), "size": 13}
        for piece in pieces:
            at = high * piece
            yield box(f"queries {piece}", 3, TOP + at, 17, high - 1, **look)
            yield box(f"column {piece}", LEFT + at, 22, high - 1, 16, **look)


def _on_ring(place, ranks):
    """Where the middle of a rank's place is, or of what lies between two places: rank 0 is at the top."""
    angle = 2 * math.pi * place / ranks - math.pi / 2
    return RING_X + RING_WIDE * math.cos(angle), RING_Y + RING_HIGH * math.sin(angle)


def _ring(ranks):
    """The way of the keys, behind all. Heads of arrows are between the ranks, where no box hides them."""
    look = {"line": "#999999", "width": 2, "layer": -1}
    for rank in range(ranks):
        here = _on_ring(rank, ranks)
        between = _on_ring(rank + 0.5, ranks)
        there = _on_ring(rank + 1, ranks)
        yield path(f"arrow {rank}", [here, between], arrow=True, **look)
        yield path(f"way {rank}", [between, there], **look)


def _moments(steps):
    """(number of the step, time) of each frame."""
    for number, step in enumerate(steps):
        # The keys travel here. That takes no time, but is a frame of its own, so that one sees them go.
        yield number, step.begin
        yield number, (step.begin + step.end) / 2
        yield number, step.end


def _done(steps, ranks, now):
    """By rank: how many pairs it has computed until now."""
    done = [0] * ranks
    for step in steps:
        for block in step.blocks:
            if block.begin < now:
                done[block.rank] += min(block.end, now) - block.begin
    return [round(pairs) for pairs in done]


def _pairs(steps, number, now):
    """What is computed: strong in this step, pale if it was before."""
    high = SIDE / (2 * len(steps))
    for step in steps[:number + 1]:
        # Pale colours let the square show what is new.
        opacity = None if step is steps[number] else 0.4
        for block in step.blocks:
            if block.begin < now:
                yield _block(block, high, opacity)


def _block(block, high, opacity):
    name = f"pairs {block.row}/{block.column}"
    left = LEFT + high * block.column
    top = TOP + high * block.row
    side = high - 1  # a gap tells it from the next one
    look = {"fill": RANKS[block.rank], "opacity": opacity}
    if block.row == block.column:
        corners = [left, top], [left, top + side], [left + side, top + side]
        return path(name, corners, width=0.1, **look)
    look["from"] = {"w": 0}
    return box(name, left, top, side, side, **look)


def _ranks(step, now):
    """The ranks on the ring: one that waits is dashed."""
    ranks = len(step.ready)
    for rank, ready in enumerate(step.ready):
        x, y = _on_ring(rank, ranks)
        look = {"text": f"rank {rank}", "fill": RANKS[rank]}
        if ready < now:
            look = {
                "text": f"{rank} waits",
                "fill": "#ffffff",
                "line": RANKS[rank],
                "width": 2,
                "dash": True,
            }
        yield box(f"rank {rank}", x - WIDE / 2, y - HIGH, WIDE, HIGH - 1, size=14, **look)


def _keys(number, ranks):
    """The keys of each rank, where they are in a step: below the rank that holds them."""
    for owner in range(ranks):
        x, y = _on_ring(owner + number, ranks)
        look = {
            "text": f"keys {owner}",
            "fill": "#ffffff",
            "line": RANKS[owner],
            "width": 3,
        }
        yield box(f"keys {owner}", x - WIDE / 2, y, WIDE, HIGH - 1, size=14, layer=1, **look)


def _said(steps, number, now):
    """The title and the note of a frame."""
    step = steps[number]
    ranks = len(steps)
    if now == 0:
        title = "Before: each rank holds its own queries and keys"
        note = "Each has two pieces of the sequence. A step takes as long as its slowest rank."
    elif now == steps[-1].end:
        title = "All pairs are computed"
        note = f"This took as long as {now} pairs of one rank."
    elif now == step.begin:
        title = f"Step {number + 1} of {ranks}: the keys travel"
        note = "Each rank passes the keys that it held to the next."
    else:
        title = f"Step {number + 1} of {ranks}: each rank computes with the keys it holds"
        pairs = [str(ready - step.begin) for ready in step.ready]
        note = f"Pairs in this step, by rank: {', '.join(pairs)}."
    return title, note


def pairs_explorer():
    """Pairs explorer: keys travel round a ring of ranks; a square fills with the pairs of tokens in the colour of the
    rank that computes them, and lanes show how long each rank waits for the slowest."""
    controls = {
        "cut": buttons("cut", "contiguous", CUTS),
        "ranks": slider("ranks", 4, range(2, 9)),
    }
    return Stage("pairs_explorer", pairs_explorer.__doc__, scene, controls,
                 look="Press Play. Strong colours are computed in this step. Who waits for whom?",
                 presets={
                     "the whole ring": preset("Press Play. In which steps does rank 0 compute anything?"),
                     "zigzag": preset("Press Play. Who waits now?", cut="zigzag"),
                     "8 ranks": preset("How much is dotted? Then set 4 ranks, then 2: when is the share largest?",
                                       frame=-1, ranks=8),
                 }, still=7)
