"""Who gives what to whom in a collective: worked out from numbers that real ranks held before it and after it."""

from itertools import combinations
from typing import NamedTuple

from helpers.widgets.shapes import RANKS, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset

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
BEFORE, ARRIVED, AFTER = "before", "arrived", "after"
SUM = "#333333"  #: under a number that no rank held before
WIDTH, GAP = 560, 8
TOP, BOTTOM, ROW, HIGH = 54, 190, 30, 27  #: where the numbers before and after begin; from row to row; of a cell


class Held(NamedTuple):
    """A number that a rank holds afterwards."""

    rank: int
    row: int
    column: int
    number: float
    sources: list  # [(rank, place)] of the numbers before that make it up; none if nobody can tell
    first_row: int  # of its sources, which stand below one another until they are added up

    @property
    def name(self):
        return f"{self.rank}/{self.row}/{self.column}"


def held_after(before, after):
    """All numbers that ranks hold after a collective, with what they were made of, found by value.

    Args:
        before: By rank, the numbers that it held; each in one rank only, so that one can tell where it went.
        after: By rank, what it held afterwards: a list of numbers, a list of such lists, or None.
    """
    sums = _sums(before)
    found = []
    for rank, parts in enumerate(after):
        first_row = 0
        for row, numbers in enumerate(_rows(parts, len(before[0]))):
            sources = [_sources(number, rank, column, before, sums) for column, number in enumerate(numbers)]
            found += [Held(rank, row, column, number, sources[column], first_row)
                      for column, number in enumerate(numbers)]
            first_row += max(1, *map(len, sources))
    return found


def _rows(parts, columns):
    """What a rank holds, as rows of at most `columns` numbers."""
    if parts is None:
        return
    for part in parts if isinstance(parts[0], list | tuple) else [parts]:
        for begin in range(0, len(part), columns):
            yield part[begin:begin + columns]


def _sums(before):
    """{sum: the cells that it is made of}: of every set of ranks, at every place; of two sets, the larger one."""
    sums = {}
    for size in range(2, len(before) + 1):
        for ranks in combinations(range(len(before)), size):
            for place in range(len(before[0])):
                sums[_key(sum(before[rank][place] for rank in ranks))] = [(rank, place) for rank in ranks]
    return sums


def _sources(number, rank, column, before, sums):
    """Where a number in that rank and column comes from: from the rank itself, if it held it before."""
    cells = [(holder, place) for holder, numbers in enumerate(before)
             for place, held in enumerate(numbers) if held == number]
    if cells:
        return [min(cells, key=lambda cell: (cell[0] != rank, cell[1] != column))]
    return sums.get(_key(number), [])


def _key(number):
    return round(number, 6)  # sums of float32 differ after that


def _written(number):
    return f"{number:g}"


class Room:
    """Where the ranks stand, side by side, and the numbers in them: before above, after below."""

    def __init__(self, before, held):
        numbers = [number for numbers in before for number in numbers] + [one.number for one in held]
        self.ranks = range(len(before))
        self.panel = (WIDTH - GAP * (len(before) - 1)) / len(before)
        self.step = min(60, (self.panel - 6) / len(before[0]))
        self.inset = (self.panel - self.step * len(before[0]) + 2) / 2
        self.look = {"size": min(15, (self.step - 4) / (0.65 * max(map(len, map(_written, numbers)))))}
        rows = max([len(before), *(one.first_row + len(one.sources) for one in held)])
        self.end = BOTTOM + ROW * rows

    def left(self, rank):
        return (self.panel + GAP) * rank

    def before(self, rank, place):
        return {"x": self.left(rank) + self.inset + self.step * place, "y": TOP}

    def after(self, rank, row, column):
        return {"x": self.left(rank) + self.inset + self.step * column, "y": BOTTOM + ROW * row}

    def cell(self, name, at, number, **more):
        return box(name, at["x"], at["y"], self.step - 2, HIGH, text=_written(number), **self.look, **more)

    def line(self, sender, receiver):
        """From the numbers of one rank to another's: [[x, y], [x, y]]; lines of one rank do not touch."""
        between, middle = self.panel / (len(self.ranks) + 2), (len(self.ranks) - 1) / 2
        begin = self.left(sender) + self.panel / 2 + between * (receiver - middle)
        end = self.left(receiver) + self.panel / 2 + between * (sender - middle)
        return [[begin, TOP + HIGH + 5], [end, BOTTOM - 10]]


def scene(name, before, after, follow=None):
    """A collective as frames: before; numbers arrive; those that met are added up.

    follow: The rank whose numbers are shown clearly, the others' being faint; None for all.
    """
    held = held_after(before, after)
    room = Room(before, held)
    common = [*_panels(room, follow), *_numbers_before(room, before, follow)]
    frames = [{"title": f"{name}: before", "shapes": common, "alt": f"{name}. Before: {_all_said(before)}",
               "note": f"Each of {len(before)} ranks holds numbers of its own. What will it hold afterwards?"}]
    said = {"note": WORDS.get(name, ""), "alt": f"{name}. After: {_all_said(after)}"}
    summed = next((one for one in held if len(one.sources) > 1), None)
    if summed:
        shapes = [*common, *_lines(room, held, follow), *_arrived(room, before, held, follow)]
        sources = [_written(before[rank][place]) for rank, place in summed.sources]
        frames.append({"title": f"{name}: the numbers have arrived", "shapes": shapes, **said})
        said["note"] = (f"Numbers that met have been added up: {' + '.join(sources)} = {_written(summed.number)}. "
                        f"Strips in a sum say whose numbers are in it.")
    more = [words(f"nothing {rank}", room.left(rank) + room.panel / 2, BOTTOM + HIGH / 2, "nothing", "middle")
            for rank in room.ranks if after[rank] is None]
    if name == "barrier":
        frames += _waiting(room, common)
        more = [_token(room, rank, BOTTOM + HIGH + 12, "compute", "computes") for rank in room.ranks]
    shapes = [*common, *_lines(room, held, follow), *_finally(room, before, held, follow), *more]
    frames.append({"title": f"{name}: after", "shapes": shapes, **said})
    return {"size": [WIDTH, room.end + 34], "pace": 1800, "frames": frames}


def _faint(ranks, follow):
    return {} if follow is None or follow in ranks else {"opacity": 0.15}


def _panels(room, follow):
    for rank in room.ranks:
        left, chosen = room.left(rank), follow == rank
        more = {"width": 4 if chosen else 1.5, "line": RANKS[rank % len(RANKS)], "layer": -1}
        yield box(f"panel {rank}", left + 2, 28, room.panel - 4, room.end, round=8, **more,
                  click={"follow": None if chosen else rank},
                  tip="click: all ranks again" if chosen else f"click: follow the numbers of rank {rank}")
        yield words(f"rank {rank}", left + room.panel / 2, 13, f"rank {rank}", "middle", bold=True)
        yield words(f"before {rank}", left + room.panel / 2, 42, "before", "middle", size=14)
        yield words(f"after {rank}", left + room.panel / 2, room.end + 13, "after", "middle", size=14)


def _numbers_before(room, before, follow):
    for rank, numbers in enumerate(before):
        for place, number in enumerate(numbers):
            yield room.cell(f"{rank}:{place}", room.before(rank, place), number, fill=RANKS[rank % len(RANKS)],
                            **_faint([rank], follow))


def _lines(room, held, follow):
    """Who gives something to whom; a dashed line is what a rank keeps."""
    pairs = {(sender, one.rank) for one in held for sender, _ in one.sources}
    for sender, receiver in sorted(pairs):
        look = {"dash": True} if sender == receiver else {"arrow": True}
        yield path(f"line {sender} {receiver}", room.line(sender, receiver), line=RANKS[sender % len(RANKS)], width=2.5,
                   layer=-1, **look, **_faint([sender], follow))


def _arrived(room, before, held, follow):
    """Copies of what ranks have given, before anything is added up."""
    for one in held:
        for row, (sender, place) in enumerate(one.sources):
            yield room.cell(f"{one.name} of {sender}", room.after(one.rank, one.first_row + row, one.column),
                            before[sender][place], fill=RANKS[sender % len(RANKS)], layer=1,
                            **{"from": room.before(sender, place)}, **_faint([sender], follow))


def _finally(room, before, held, follow):
    moved = [one._replace(first_row=one.row) for one in held if len(one.sources) == 1]
    yield from _arrived(room, before, moved, follow)
    for one in held:
        at = room.after(one.rank, one.row, one.column)
        ranks = [rank for rank, _ in one.sources]
        if len(ranks) == 1:
            continue
        tip = " + ".join(f"{_written(before[rank][place])} of rank {rank}" for rank, place in one.sources)
        yield room.cell(f"{one.name} sum", at, one.number, fill=SUM, line="#999999",
                        tip=tip or "nobody held this before", **_faint(ranks, follow))
        wide = (room.step - 8) / max(1, len(ranks))
        for number, rank in enumerate(ranks):  # what has been added shrinks to a strip
            yield box(f"{one.name} of {rank}", at["x"] + 3 + wide * number, at["y"] + HIGH - 5, wide, 4, round=0,
                      fill=RANKS[rank % len(RANKS)], layer=1, **_faint([rank], follow))


def _waiting(room, common):
    """Frames of a barrier: ranks come to it one after another; rank 0 comes last."""
    order, bar = [*room.ranks[1:], 0], box("barrier", 0, 152, WIDTH, 10, fill="#777777", layer=1, tip="the barrier")
    for come in range(len(order)):
        shapes = [*common, bar]
        for rank in order[:come]:
            shapes.append(_token(room, rank, 122, "waiting", "waits"))
        for rank in order[come:]:
            shapes.append(_token(room, rank, 88, "compute", "computes"))
        missing = ", ".join(str(rank) for rank in sorted(order[come:]))
        yield {"title": f"barrier: {come} of {len(order)} ranks have come", "shapes": shapes,
               "note": f"Still missing: rank{'s' * (come < len(order) - 1)} {missing}."}


def _token(room, rank, y, activity, text):
    look = doing(activity, text=text, hatch=None, size=14, layer=1)
    return box(f"token {rank}", room.left(rank) + room.panel / 2 - 38, y, 76, 26, **look)


def _all_said(held):
    return "; ".join(f"rank {rank} holds {_said(numbers)}" for rank, numbers in enumerate(held)) + "."


def _said(held):
    rows = _rows(held, len(held or ()) or 1)
    return " | ".join(", ".join(map(_written, row)) for row in rows) or "nothing"


def collectives_explorer(results, name):
    """Laboratory of collectives: who gives what to whom. A number's colour says which rank it comes from; sums are
    dark.

    `results` are {name: (before, after)}, as `held_after` takes them; `name` is the one to begin with.
    """
    ranks = len(results[name][0])
    controls = {"name": buttons("collective", name, results),
                "follow": buttons("follow", None, [("all", None), *((f"rank {rank}", rank) for rank in range(ranks))])}
    presets = {
        "one to all": preset("Press Play, and follow rank 0's colour. Which numbers are lost?", name="broadcast"),
        "all to everybody": preset("Press Play. How many numbers has a rank before, and how many after?",
                                   name="all_gather"),
        "a sum, in pieces": preset("Press Play. Which rank ends up with which part of the sum?",
                                   name="reduce_scatter"),
        "nothing is sent": preset("Press Play. Who waits, and for whom?", name="barrier"),
    }
    if len(results) == 1:
        del controls["name"]
        presets = {}
    return Stage("collectives_explorer", collectives_explorer.__doc__,
                 lambda name=name, follow=None: scene(name, *results[name], follow), controls,
                 look="Press Play: who gives what to whom? A number's colour says which rank it comes from.",
                 presets={on_button: one for on_button, one in presets.items() if one["values"]["name"] in results})
