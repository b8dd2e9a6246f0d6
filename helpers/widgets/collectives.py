"""What every rank holds before and after a collective: pictures of values that real ranks have sent home."""

import html

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg

#: What each collective is for, in a line.
WORDS = {
    "broadcast": "Rank 0's numbers go to all ranks. DDP starts with this: all get rank 0's weights.",
    "reduce": "The sum of all ranks' numbers goes to rank 0; the others are not promised anything.",
    "all_reduce": "The sum of all ranks' numbers goes to all ranks. This is how DDP adds up gradients.",
    "gather": "Rank 0 gets everybody's numbers, side by side.",
    "all_gather": "Every rank gets everybody's numbers, side by side.",
    "scatter": "Rank 0 deals out its numbers: one piece for each rank.",
    "reduce_scatter": "Every rank gets its own piece of the sum: the first half of a ring all-reduce.",
    "all_to_all": "Every rank deals out its numbers to all ranks: rows become columns.",
    "send_recv": "Every rank sends to its right neighbour and receives from the left one.",
    "barrier": "Nothing is sent. Nobody goes on before all have come.",
}

_ROW, _TOP, _LEFT = 62, 78, 90
_LIGHT = ["#cfe3f1", "#f8dcc6", "#c9eadf", "#f3dfea", "#def0fa", "#fbe9c8"]


def draw(name, before, after):
    """The picture of a collective, as SVG.

    Args:
        name: What it is called; WORDS explains those that it knows.
        before: By rank, the numbers that it held; every number in one rank only, so that its colour shows its origin.
        after: By rank, what it held afterwards: a list of numbers, a list of such lists, or None for nothing.

    Raises:
        ValueError: there is no rank, or `after` is of other ranks than `before`.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"before and after are lists by rank, of {len(before)} and {len(after)} ranks")
    origin = {number: rank for rank, numbers in enumerate(before) for number in numbers}
    groups = [_groups(held) for held in after]
    cells = max([len(numbers) for numbers in before] + [sum(map(len, parts)) + len(parts) / 4 for parts in groups])
    wide = min(64, 900 // (len(before[0]) + cells + 3))
    middle = _LEFT + len(before[0]) * wide + 60
    parts = [f'<text x="10" y="28" font-size="18" font-weight="bold">{html.escape(name)}</text>',
             f'<text x="10" y="54">{html.escape(WORDS.get(name, ""))}</text>']
    for rank, numbers in enumerate(before):
        y = _TOP + rank * _ROW
        parts.append(f'<text x="10" y="{y + 28}" font-weight="bold" fill="{_dark(rank)}">rank {rank}</text>')
        parts += _row(_LEFT, y, [numbers], wide, origin)
        parts.append(f'<path d="M{middle - 44} {y + 22}H{middle - 16}" stroke="#333" stroke-width="2"/>'
                     f'<path d="M{middle - 18} {y + 15}L{middle - 6} {y + 22}L{middle - 18} {y + 29}z" fill="#333"/>')
        if after[rank] is None:
            parts.append(f'<text x="{middle + 8}" y="{y + 28}" fill="#444">nothing</text>')
        parts += _row(middle + 8, y, groups[rank], wide, origin)
    return svg(960, _TOP + len(before) * _ROW + 8, parts, in_words(name, before, after))


def in_words(name, before, after):
    """The picture's text alternative."""
    ranks = "; ".join(f"rank {rank} held {_said(numbers)} and then {_said(after[rank])}"
                      for rank, numbers in enumerate(before))
    return f"{name}: {ranks}"


def _said(held):
    return "nothing" if held is None else " | ".join(", ".join(f"{n:g}" for n in part) for part in _groups(held))


def _groups(held):
    """What a rank holds, as a list of lists of numbers."""
    if held is None:
        return []
    return [list(part) for part in held] if held and isinstance(held[0], list | tuple) else [list(held)]


def _row(x, y, groups, wide, origin):
    for numbers in groups:
        for number in numbers:
            rank = origin.get(number)
            fill, ink, bold = ("#333", "#fff", "bold") if rank is None else (_light(rank), "#111", "normal")
            yield (f'<rect x="{x:.0f}" y="{y}" width="{wide - 4}" height="44" rx="4" fill="{fill}" stroke="#555"/>'
                   f'<text x="{x + (wide - 4) / 2:.0f}" y="{y + 28}" text-anchor="middle" fill="{ink}" '
                   f'font-size="{16 if wide >= 44 else 14}" font-weight="{bold}">{number:g}</text>')
            x += wide
        x += wide / 4


def _dark(rank):
    return COLOURS[rank % len(COLOURS)]


def _light(rank):
    return _LIGHT[rank % len(_LIGHT)]


def collectives_explorer(results, name="all_reduce"):
    """Choose a collective; see what every rank held before and after it.

    Args:
        results: {name: (before, after)}, as `draw` takes them, from real ranks.
        name: The one to begin with.
    """
    controls = {"name": widgets.ToggleButtons(options=list(results), value=name, description="collective",
                                              style={"button_width": "130px"})}
    return Explorer(controls, lambda name: draw(name, *results[name]),
                    "Laboratory of collectives: choose one; the picture shows the numbers that every rank held before "
                    "and after it, coloured by the rank they come from; sums are dark.")
