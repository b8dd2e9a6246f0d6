"""What every rank holds before and after a collective: pictures of values that real ranks have sent home."""

from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.widgets.explorer import Explorer, buttons

#: What each collective is for, in a line.
WORDS = {
    "broadcast": "Rank 0's numbers go to all ranks. DDP starts with this: all get rank 0's weights.",
    "reduce": "The sum of all ranks' numbers goes to rank 0; the others are not promised anything.",
    "all_reduce": "The sum of all ranks' numbers goes to all ranks. This is how DDP adds up gradients.",
    "gather": "Rank 0 gets everybody's numbers, side by side.",
    "all_gather": "Every rank gets everybody's numbers, side by side.",
    "scatter": "Rank 0 deals out its numbers: one piece for each rank.",
    "reduce_scatter": "The numbers are added up, and every rank gets its own piece of the sum.",
    "all_to_all": "Every rank deals out its numbers to all ranks: rows become columns.",
    "send_recv": "Every rank sends to its right neighbour and receives from the left one.",
    "sum_in_pair": "Ranks 0 and 1 are a sub-group, and add up among themselves.",
    "barrier": "Nothing is sent. Nobody goes on before all have come.",
}

SUM = "#333333"  # the colour of a number that no rank held before
_ARROW, _GAP = 1.6, 0.25  # room between before and after, and between parts, in boxes


def draw(ax, name, before, after):
    """Draw what the ranks held before a collective, one of WORDS, and what they hold after it.

    Args:
        before: By rank, the numbers that it held; each in one rank only, so that colours show origins.
        after: By rank, what it held afterwards: a list of numbers, a list of such lists, or None.
    """
    origin = {number: rank for rank, numbers in enumerate(before) for number in numbers}
    middle, boxes = len(before[0]) + _ARROW, []  # boxes: (x, rank, number)
    right = middle + len(before) * (len(before[0]) + _GAP)  # one scale for all: room for all_gather
    for rank, numbers in enumerate(before):
        boxes += [(x, rank, number) for x, number in enumerate(numbers)]
        begin, end = (middle - _ARROW + 0.2, rank), (middle - 0.3, rank)
        ax.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "lw": 2})
        if after[rank] is None:
            ax.text(middle, rank, "nothing", va="center")
        x = middle
        for part in _parts(after[rank]):
            boxes += [(x + place, rank, number) for place, number in enumerate(part)]
            x += len(part) + _GAP
    fills = [_fill(origin.get(number)) for _, _, number in boxes]
    rectangles = [Rectangle((x, rank - 0.36), 0.92, 0.72) for x, rank, _ in boxes]
    ax.add_collection(PatchCollection(rectangles, facecolors=fills, edgecolors="#555555"))
    for (x, rank, number), fill in zip(boxes, fills, strict=True):
        look = {"color": "white", "fontweight": "bold"} if fill == SUM else {"color": "#111111"}
        ax.text(x + 0.46, rank, f"{number:g}", ha="center", va="center", size=min(12, 200 / right), **look)
    ax.set(xlim=(-0.1, right), ylim=(len(before) - 0.5, -0.5))
    after_ends = max(middle + 1, *(x + 1 for x, _, _ in boxes))
    ax.set_xticks([len(before[0]) / 2, (middle + after_ends) / 2], ["before", "after"])
    ax.set_yticks(range(len(before)), [f"rank {rank}" for rank in range(len(before))])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)
    ax.set_title(name, pad=26)
    ax.text(0, 1.03, WORDS[name], transform=ax.transAxes, va="bottom")
    ranks = "; ".join(f"rank {rank} held {_said(numbers)} and then {_said(after[rank])}"
                      for rank, numbers in enumerate(before))
    ax.figure.set_label(f"{name}: {ranks}")


def _said(held):
    return " | ".join(", ".join(f"{number:g}" for number in part) for part in _parts(held)) or "nothing"


def _parts(held):
    """What a rank holds, as a list of lists of numbers."""
    if held is None:
        return []
    return held if isinstance(held[0], list | tuple) else [held]


def _fill(rank):
    """A light tone of the rank's colour; SUM where the number comes from no single rank."""
    return SUM if rank is None else tuple(1 - 0.35 * (1 - tone) for tone in to_rgb(f"C{rank}"))


def collectives_explorer(results, name):
    """Laboratory of collectives: choose one; the picture shows the numbers that every rank held before and
    after it, coloured by the rank they come from; sums are dark.

    `results` are {name: (before, after)}, as `draw` takes them; `name` is the one to begin with.
    """
    figure = Figure(figsize=(9, 2.8), layout="none")
    ax = figure.add_axes((0.08, 0.1, 0.91, 0.7))
    choice = buttons("collective", results)
    choice.value = name

    def redraw(name):
        ax.clear()
        draw(ax, name, *results[name])
        return figure

    presets = {
        "one to all": ({"name": "broadcast"}, "Follow rank 0's colour. Which numbers are lost?"),
        "all to all": ({"name": "all_gather"}, "Count the numbers of a rank before and after."),
        "a sum, in pieces": ({"name": "reduce_scatter"},
                             "Dark numbers are sums. Which ranks hold which part of it?"),
    }
    return Explorer({"name": choice}, redraw, collectives_explorer.__doc__,
                    "A number's colour says which rank it comes from; a dark one is a sum.",
                    {words: preset for words, preset in presets.items() if preset[0]["name"] in results})
