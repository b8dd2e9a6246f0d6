"""The pairs explorer: keys travel round a ring of ranks, and each rank computes the pairs that it can."""

import math
from itertools import pairwise
from typing import NamedTuple

from helpers.widgets.shapes import RANKS, Lanes, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from lessons.context_and_experts.cuts import CUTS

TOKENS = 64
SIZE = (560, 444)
LEFT, TOP, SIDE = 22, 40, 224  #: the square of all pairs
CENTRE, RADIUS = (411, 152), (112, 88)  #: the ring
WIDE, HIGH = 60, 23  #: a rank's place on it, and that of keys below


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
    steps, begin = [], 0
    for step in range(ranks):
        ready, blocks = [], []
        for rank in range(ranks):
            done = _computed(rank, where[rank], where[(rank - step) % ranks], begin, piece_for(ranks))
            ready.append(done[-1].end if done else begin)
            blocks += done
        steps.append(Step(begin, max(ready), ready, blocks))
        begin = max(ready)
    return steps


def _computed(rank, queries, keys, clock, piece):
    """What a rank computes with the keys that it holds, from the time `clock` on."""
    blocks = []
    for column in keys:
        for row in queries:
            if row >= column:  # no query looks ahead
                pairs = piece * (piece + 1) // 2 if row == column else piece * piece
                blocks.append(Block(rank, row, column, clock, clock + pairs))
                clock += pairs
    return blocks


def scene(cut, ranks):
    """A frame for the time that a block takes, and one for each time that the keys travel."""
    steps, where = ring(cut, ranks), owners(cut, ranks)
    piece = piece_for(ranks)
    # As long as a contiguous cut takes, so that zigzag is seen to be shorter.
    lanes = Lanes([f"rank {rank}" for rank in range(ranks)], 4 * ranks * piece * piece, x=66, y=284, w=474,
                  row=min(28, 118 / ranks), gap=2, unit="time, in pairs of a query and a key")
    middle = CENTRE[0], CENTRE[1] - (50 if ranks == 2 else 0)  # of two, the arrows cross the middle
    fixed = [*lanes.shapes(), *_square(where, ranks), *_arrows(ranks)]
    spans = list(_spans(steps))
    frames = []
    for number, now in _moments(steps, piece):
        step = steps[number]
        done = [_pairs_until(now, rank, steps) for rank in range(ranks)]
        waited = 1 - sum(done) / (ranks * now) if now else 0
        shapes = [*fixed, *lanes.bars(spans, now), *_pairs(steps, number, now, ranks), *_ranks(step, now, ranks),
                  *_keys(number, ranks),
                  words("waiting", *middle, f"step {number + 1} of {ranks}\nwaiting {waited:.0%}", "middle", size=15)]
        title, note = _said(steps, number, now, done)
        alt = (f"{cut} cut, {ranks} ranks, step {number + 1} of {ranks}: pairs by rank {done}; "
               f"the ranks have waited for {waited:.0%} of the time.")
        frames.append({"title": title, "note": note, "alt": alt, "shapes": shapes})
    return {"size": SIZE, "axis": lanes.axis, "flows": True, "pace": 420, "frames": frames}


def _moments(steps, piece):
    """(number of the step, time) of each frame."""
    yield 0, 0
    for number, step in enumerate(steps):
        if number:
            yield number, step.begin  # the keys have travelled
        parts = round((step.end - step.begin) / piece**2)
        for part in range(1, parts + 1):
            yield number, step.begin + (step.end - step.begin) * part / parts


def _pairs_until(now, rank, steps):
    blocks = [block for step in steps for block in step.blocks if block.rank == rank and block.begin < now]
    return round(sum(min(block.end, now) - block.begin for block in blocks))


def _spans(steps):
    """For the lanes: in each step what a rank computes, and then how long it waits for the slowest."""
    for number, step in enumerate(steps):
        for rank, ready in enumerate(step.ready):
            if ready > step.begin:
                yield f"work {rank}/{number}", rank, step.begin, ready, {"fill": RANKS[rank],
                                                                         "text": str(ready - step.begin)}
            if ready < step.end:
                yield f"wait {rank}/{number}", rank, ready, step.end, doing("waiting")


def _square(where, ranks):
    """The frame of the square: whose queries lie in which row, whose keys in which column."""
    high = SIDE / (2 * ranks)
    below, right = TOP + SIDE, LEFT + SIDE
    yield words("axes", LEFT - 19, 10, "queries ↓ and keys → by rank", size=14)
    yield path("all pairs", [[LEFT, TOP], [LEFT, below], [right, below], [LEFT, TOP]], fill="#888888",
               opacity=0.2, layer=-1)
    yield words("masked", LEFT + 0.7 * SIDE, TOP + 0.25 * SIDE, "later keys:\nmasked", "middle", size=14)
    for rank, pieces in enumerate(where):
        for piece in pieces:
            at = high * piece
            yield box(f"queries {piece}", LEFT - 19, TOP + at, 17, high - 1, fill=RANKS[rank], text=str(rank), size=13)
            yield box(f"column {piece}", LEFT + at, TOP - 18, high - 1, 16, fill=RANKS[rank], text=str(rank), size=13)


def _pairs(steps, number, now, ranks):
    """What is computed: strong in this step, pale if it was before."""
    for place, step in enumerate(steps[:number + 1]):
        for block in step.blocks:
            if block.begin < now:
                yield _block(block, now, SIDE / (2 * ranks), None if place == number else 0.4)


def _block(block, now, high, opacity):
    x, y = LEFT + high * block.column, TOP + high * block.row
    look = {"fill": RANKS[block.rank], "opacity": opacity, "tip": f"rank {block.rank}: {block.end - block.begin} pairs"}
    name = f"pairs {block.row}/{block.column}"
    if block.row == block.column:  # half of it is masked
        return path(name, [[x, y], [x, y + high - 1], [x + high - 1, y + high - 1]], width=0.1, **look)
    share = min(1, (now - block.begin) / (block.end - block.begin))
    return box(name, x, y, share * (high - 1), high - 1, **{"from": {"w": 0}}, round=1, **look)


def _corner(rank, ranks):
    """The upper left corner of a rank's place on the ring: rank 0 at the top, or at the left of two."""
    angle = 2 * math.pi * rank / ranks - (math.pi if ranks == 2 else math.pi / 2)
    return (CENTRE[0] + RADIUS[0] * math.cos(angle) - WIDE / 2, CENTRE[1] + RADIUS[1] * math.sin(angle) - HIGH)


def _arrows(ranks):
    """From each rank to the next one, behind all."""
    middles = [(x + WIDE / 2, y + HIGH) for x, y in (_corner(rank, ranks) for rank in range(ranks + 1))]
    for rank, ((x, y), (to_x, to_y)) in enumerate(pairwise(middles)):
        half = [x + 0.55 * (to_x - x), y + 0.55 * (to_y - y)]
        yield path(f"arrow {rank}", [[x, y], half], arrow=True, width=2, opacity=0.4, layer=-1)
        yield path(f"way {rank}", [half, [to_x, to_y]], width=2, opacity=0.4, layer=-1)


def _ranks(step, now, ranks):
    for rank in range(ranks):
        x, y = _corner(rank, ranks)
        waits = step.ready[rank] < now
        look = {"text": f"rank {rank}", "fill": RANKS[rank]}
        if waits:
            look = {"text": f"{rank} waits", "fill": "#ffffff", "line": RANKS[rank], "width": 2, "dash": True}
        yield box(f"rank {rank}", x, y, WIDE, HIGH - 1, size=14, **look)


def _keys(number, ranks):
    """The keys of each rank, where they are in a step."""
    for owner in range(ranks):
        x, y = _corner(owner + number, ranks)
        yield box(f"keys {owner}", x, y + HIGH, WIDE, HIGH - 1, text=f"keys {owner}", size=14, layer=1,
                  fill="#ffffff", line=RANKS[owner], width=3)


def _said(steps, number, now, done):
    """The title and the note of a frame."""
    step, ranks = steps[number], len(steps)
    if now == steps[-1].end:
        waited = 1 - sum(done) / (ranks * now)
        return ("All pairs are computed", f"By rank: {', '.join(map(str, done))} pairs. All were there for {now:g} "
                f"pairs' time; {waited:.0%} of that is waiting.")
    if now == 0:
        return ("Before: each rank holds its own queries and keys",
                f"{2 * ranks * piece_for(ranks)} tokens in {2 * ranks} pieces, two for each rank. "
                "A step takes as long as its slowest rank.")
    if now == step.begin:
        return f"Step {number + 1} of {ranks}: the keys travel", "Each rank passes the keys that it held to the next."
    idle = [str(rank) for rank, ready in enumerate(step.ready) if ready == step.begin]
    if idle:
        what = f"rank{'s' * (len(idle) > 1)} {', '.join(idle)}"
        note = f"Nothing to compute for {what}: the keys there come later than all of the queries."
    else:
        least, most = min(step.ready) - step.begin, max(step.ready) - step.begin
        note = f"In this step each rank computes {most if least == most else f'{least} to {most}'} pairs."
    return f"Step {number + 1} of {ranks}: each rank computes with the keys it holds", note


def pairs_explorer():
    """Pairs explorer: keys travel round a ring of ranks; a square fills with the pairs of tokens in the colour of the
    rank that computes them, and lanes show how long each rank waits for the slowest."""
    return Stage("pairs_explorer", pairs_explorer.__doc__, scene,
                 {"cut": buttons("cut", "contiguous", CUTS), "ranks": slider("ranks", 4, range(2, 9))},
                 look="Press Play. Strong colours are computed in this step. Who waits for whom?",
                 presets={
                     "the whole ring": preset("Press Play. In which steps does rank 0 compute anything?"),
                     "zigzag": preset("Press Play. Who waits now?", cut="zigzag"),
                     "8 ranks": preset("How much is dotted? Then set 4 ranks, then 2: do more ranks wait more?",
                                       frame=-1, ranks=8),
                 }, still=9)
