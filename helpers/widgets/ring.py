"""The ring all-reduce, step by step: who holds which partial sum, who sends what to whom, and how much in all.

`ring_states` runs the algorithm; the picture and the explorer only show its states.
"""

import itertools
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg

BEFORE, REDUCE_SCATTER, ALL_GATHER = "before", "reduce-scatter", "all-gather"


@dataclass(frozen=True)
class RingState:
    """What all ranks hold after one step."""

    phase: str
    """BEFORE, REDUCE_SCATTER or ALL_GATHER."""
    chunks: list
    """chunks[rank][chunk]: the list of numbers that the rank holds in that chunk."""
    summed: list
    """summed[rank][chunk]: the set of the ranks whose numbers are summed up in it."""
    sends: list
    """What was sent in the step: [(sender, receiver, chunk)], one per rank; empty before the first step."""
    sent: list
    """By rank: how many numbers it has sent so far."""


def split(count, parts):
    """Ranges that share out `count` places among `parts` chunks; the first ones are one longer where it must be."""
    each, longer = divmod(count, parts)
    starts = [part * each + min(part, longer) for part in range(parts + 1)]
    return [range(*pair) for pair in itertools.pairwise(starts)]


def ring_states(values):
    """Run a ring all-reduce (sum) over `values`, and return the state before it and after each of its 2(N-1) steps.

    Reduce-scatter: in each step every rank sends a chunk to its right neighbour, which adds it to its own. After N-1
    steps every rank holds one chunk of the whole sum. All-gather: the finished chunks go round, N-1 steps again.

    Args:
        values: By rank, its numbers; equally many in each rank. Any number of ranks from 1 up.

    Raises:
        ValueError: there is no rank, or the ranks hold different numbers of numbers.
    """
    ranks = len(values)
    if ranks == 0 or len({len(numbers) for numbers in values}) != 1:
        raise ValueError("values must hold a list of numbers for each rank, all of them of the same length")
    places = split(len(values[0]), ranks)
    chunks = [[list(numbers[part.start:part.stop]) for part in places] for numbers in values]
    summed = [[frozenset([rank])] * ranks for rank in range(ranks)]
    sent = [0] * ranks
    states = [_state(BEFORE, chunks, summed, [], sent)]
    for step in range(2 * (ranks - 1)):
        adds = step < ranks - 1
        sends = [(rank, (rank + 1) % ranks, (rank - step) % ranks) for rank in range(ranks)]
        packets = [(chunks[rank][chunk], summed[rank][chunk]) for rank, _, chunk in sends]  # all at the same moment
        for (sender, receiver, chunk), (numbers, whose) in zip(sends, packets, strict=True):
            if adds:
                numbers = [own + come for own, come in zip(chunks[receiver][chunk], numbers, strict=True)]
                whose = summed[receiver][chunk] | whose
            chunks[receiver][chunk], summed[receiver][chunk] = list(numbers), whose
            sent[sender] += len(numbers)
        states.append(_state(REDUCE_SCATTER if adds else ALL_GATHER, chunks, summed, sends, sent))
    return states


def _state(phase, chunks, summed, sends, sent):
    return RingState(phase, [list(row) for row in chunks], [list(row) for row in summed], sends, list(sent))


# ---------------------------------------------------------------------------------------------------------- the picture

_LEFT, _TOP, _ROW, _CELL = 110, 104, 66, 42
_SHADES = ["#ffffff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#56a5d3"]


def example(ranks):
    """Numbers that show where they come from: rank 0 holds 1, 2, 3 …, rank 1 holds 10, 20, 30 …, and so on."""
    return [[(chunk + 1) * 10**rank for chunk in range(ranks)] for rank in range(ranks)]


def draw(ranks, step, megabytes=100.0):
    """The picture after a step, as SVG.

    Args:
        ranks: 2 to 6.
        step: 0 (before) to 2(ranks-1); a larger one is taken for the last.
        megabytes: The size of the tensor, for the amounts of data.
    """
    states = ring_states(example(ranks))
    step = min(step, len(states) - 1)
    state, numbers = states[step], ranks
    wide = min(150, 780 // ranks)
    height = _TOP + ranks * _ROW + 190
    sent = state.sent[0] / numbers
    heading = (f"Step {step} of {len(states) - 1}: {state.phase}" if step
               else f"Before: each of {ranks} ranks holds its own numbers, cut into {ranks} chunks")
    parts = [f'<text x="10" y="30" font-size="20" font-weight="bold">{heading}</text>',
             f'<text x="10" y="56">{_explained(ranks, step, state)}</text>']
    parts += [_text(_LEFT + (chunk + 0.5) * wide, _TOP - 22, f"chunk {chunk}", 'text-anchor="middle"')
              for chunk in range(ranks)]
    for rank in range(ranks):
        y = _TOP + rank * _ROW
        parts.append(_text(10, y + 27, f"rank {rank}", f'font-weight="bold" fill="{_dark(rank)}"'))
        for chunk in range(ranks):
            parts.append(_cell(state, rank, chunk, _LEFT + chunk * wide, y, wide))
    for sender, receiver, chunk in state.sends:
        parts += _arrow(sender, receiver, _LEFT + (chunk + 0.5) * wide, ranks)
    parts += _amounts(ranks, sent, megabytes, _TOP + ranks * _ROW + 34)
    parts.append(_text(10, height - 14, "white: only the rank's own numbers   ·   darker: more ranks summed up   ·   "
                       "bold, ✔: the sum of all ranks", 'font-size="15"'))
    finished = sum(len(whose) == ranks for row in state.summed for whose in row)
    return svg(960, height, parts, f"Ring all-reduce of {ranks} ranks, step {step} of {len(states) - 1}, "
                                   f"{state.phase}: {finished} of {ranks * ranks} chunks hold the whole sum; each rank "
                                   f"has sent {sent:.2f} tensors.")


def _explained(ranks, step, state):
    if not step:
        return "Rank 0 holds 1, 2, 3 …; rank 1 holds 10, 20, 30 …: a sum shows by its digits which ranks are in it."
    if state.phase == REDUCE_SCATTER:
        end = " Each now holds one finished chunk." if step == ranks - 1 else ""
        return f"Every rank sent one chunk to its right neighbour, which added it to its own.{end}"
    end = " All ranks hold the whole sum." if step == 2 * (ranks - 1) else ""
    return f"Every rank passed on a finished chunk; its right neighbour put it in its place.{end}"


def _text(x, y, text, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{text}</text>'


def _dark(rank):
    return COLOURS[rank % len(COLOURS)]


def _cell(state, rank, chunk, x, y, wide):
    whose, ranks = state.summed[rank][chunk], len(state.chunks)
    arrived = any((receiver, sent) == (rank, chunk) for _, receiver, sent in state.sends)
    done = len(whose) == ranks
    value = state.chunks[rank][chunk][0]
    return (f'<rect x="{x + 4:.0f}" y="{y}" width="{wide - 8:.0f}" height="{_CELL}" rx="5" '
            f'fill="{_SHADES[min(len(whose), len(_SHADES)) - 1 if ranks > 1 else 0]}" '
            f'stroke="{"#d55e00" if arrived else "#555"}" stroke-width="{3.5 if arrived else 1}"/>'
            + _text(x + wide / 2, y + 27, f"{value}{' ✔' if done else ''}",
                    f'text-anchor="middle" {"font-weight=" + chr(34) + "bold" + chr(34) if done else ""}'))


def _arrow(sender, receiver, x, ranks):
    """From the sender's cell down to the receiver's; from the last rank out at the bottom, and in at the top."""
    def stroke(from_y, to_y):
        return (f'<path d="M{x:.0f} {from_y}V{to_y - 6}" stroke="#d55e00" stroke-width="3"/>'
                f'<path d="M{x - 7:.0f} {to_y - 9}L{x:.0f} {to_y}L{x + 7:.0f} {to_y - 9}z" fill="#d55e00"/>')

    bottom = _TOP + sender * _ROW + _CELL
    if receiver > sender:
        return [stroke(bottom + 1, _TOP + receiver * _ROW - 1)]
    words = _text(x + 12, bottom + 20, f"to rank {receiver}", 'font-size="14" fill="#a83c00"')
    return [stroke(bottom + 1, bottom + 22), words, stroke(_TOP - 17, _TOP - 1)]


def _amounts(ranks, sent, megabytes, y):
    """Bars: sent so far by each rank, in the end, and by the naive way."""
    limit, naive = 2 * (ranks - 1) / ranks, ranks - 1
    rows = [("sent so far by each rank", sent, "#0072b2"),
            (f"in the end: 2·({ranks}−1)/{ranks} of the tensor", limit, "#9ecae1"),
            ("naive: its whole tensor to every other rank", naive, "#bbbbbb")]
    scale = 380 / max(limit, naive)
    parts = [_text(10, y, f"Sent by each rank, for a tensor of {megabytes:g} MB", 'font-weight="bold"')]
    for number, (name, amount, colour) in enumerate(rows):
        top = y + 14 + 34 * number
        parts += [_text(10, top + 20, name),
                  f'<rect x="390" y="{top}" width="{amount * scale:.1f}" height="26" fill="{colour}"/>',
                  _text(398 + amount * scale, top + 20, f"{amount:.2f} tensors, {amount * megabytes:.0f} MB")]
    return parts


def ring_explorer(ranks=4, megabytes=100.0, step=2):
    """Step through a ring all-reduce of 2 to 6 ranks.

    Args:
        ranks: The number of ranks at first.
        megabytes: The size of the tensor, for the amounts of data.
        step: The step at first.
    """
    wide = {"style": {"description_width": "120px"}, "layout": {"width": "600px"}}
    last = 2 * (ranks - 1)
    controls = {"ranks": widgets.IntSlider(ranks, 2, 6, description="ranks", **wide),
                "step": widgets.IntSlider(min(step, last), 0, last, description="step", **wide)}
    controls["ranks"].observe(lambda change: setattr(controls["step"], "max", 2 * (change["new"] - 1)), names="value")
    return Explorer(controls, lambda **values: draw(**values, megabytes=megabytes),
                    "Ring all-reduce: set the number of ranks and go through the steps; the picture shows each rank's "
                    "chunks with their partial sums, what is sent in the step, and how much each rank has sent.")
