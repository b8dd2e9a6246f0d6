"""Who gives what to whom in a collective: each number glides from the rank that held it to those that hold it after.

Nothing here knows what a collective does: where a number comes from is found by its value.
"""

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
PRESETS = {
    "one to all": preset("Press Play, and follow rank 0's colour. Which numbers are lost?", name="broadcast"),
    "all to everybody": preset("Press Play. How many numbers has a rank before, and how many after?",
                               name="all_gather"),
    "a sum, in pieces": preset("Press Play. Which rank ends up with which part of the sum?", name="reduce_scatter"),
    "nothing is sent": preset("Press Play. Who waits, and for whom?", name="barrier"),
}
SUM = "#333333"  #: under a number that no rank held before
WIDTH, GAP = 560, 8  #: of the scene; between two ranks' panels
TOP, BOTTOM = 54, 190  #: where the numbers before and after begin
ROW, HIGH = 30, 27  #: from row to row; of a cell
WAITS = doing("waiting", text="waits", hatch=None)
COMPUTES = doing("compute", text="computes", hatch=None)


class Held(NamedTuple):
    """A number that a rank holds afterwards."""

    rank: int
    row: int
    column: int
    number: float
    sources: list  # [(rank, place)] of the numbers before that make it up; none if nobody can tell

    @property
    def name(self):
        return f"{self.rank}/{self.row}/{self.column}"


def held_after(before, after):
    """All numbers that ranks hold after a collective, with what they were made of, found by value.

    Args:
        before: By rank, the numbers that it held; each in one rank only, so that one can tell where it went.
        after: By rank, what it held afterwards: a list of numbers, a list of such lists, or None.
    """
    origins = _origins(before)
    held = []
    for rank, parts in enumerate(after):
        for row, numbers in enumerate(_rows(parts, len(before[0]))):
            for column, number in enumerate(numbers):
                sources = origins.get(round(number, 6), [])
                held.append(Held(rank, row, column, number, sources))
    return held


def _origins(before):
    """{number: [(rank, place), …]}: each number before, and each sum of some ranks' numbers at one place."""
    origins = {}
    # A number that a rank held is no sum, even if it equals one: it comes last, and stays.
    for size in (*range(2, len(before) + 1), 1):
        for ranks in combinations(range(len(before)), size):
            for place in range(len(before[0])):
                number = sum(before[rank][place] for rank in ranks)
                # Sums of float32 differ in later digits, by the order in which they were added up.
                origins[round(number, 6)] = [(rank, place) for rank in ranks]
    return origins


def _rows(parts, columns):
    """What a rank holds, in rows of at most `columns` numbers: a long tensor goes on in the next row."""
    if parts is None:
        return
    if not isinstance(parts[0], list):
        parts = [parts]
    for part in parts:
        for begin in range(0, len(part), columns):
            yield part[begin:begin + columns]


class Room:
    """A collective, and where its numbers stand: a panel for each rank, the numbers before above those after."""

    def __init__(self, before, after):
        self.before = before
        self.after = after
        self.held = held_after(before, after)
        self.ranks = range(len(before))
        self.columns = len(before[0])
        # As many rows as ranks at least, because the addends of a sum stand below one another.
        rows = [one.row + 1 for one in self.held]
        self.end = BOTTOM + ROW * max([len(before), *rows])
        self.panel = WIDTH / len(before)
        self.step = min(60, (self.panel - 16) / self.columns)
        # Each rank has a digit more than the one before it, in the lesson's numbers.
        self.size = 15 if len(before) < 4 else 11

    def middle(self, rank):
        return self.panel * (rank + 0.5)

    def left(self, rank, column):
        return self.middle(rank) + self.step * (column - self.columns / 2) + 1

    def cell(self, id, left, y, number, **more):
        return box(id, left, y, self.step - 2, HIGH, text=f"{number:g}", size=self.size, **more)

    def line(self, sender, receiver):
        """From the numbers of one rank to another's: lines that begin or end in one rank do not touch."""
        between = self.panel / (len(self.ranks) + 2)
        centre = self.ranks[-1] / 2
        # A line to a rank further right begins further right, so that the lines of one rank spread like a fan.
        begin = self.middle(sender) + between * (receiver - centre)
        end = self.middle(receiver) + between * (sender - centre)
        return [[begin, TOP + HIGH + 5], [end, BOTTOM - 10]]

    def addition(self, one):
        """What makes up a number, written: "1 + 10 + 100"."""
        addends = [self.before[rank][place] for rank, place in one.sources]
        return " + ".join(f"{addend:g}" for addend in addends)


def scene(name, before, after):
    """A collective as frames: before; numbers arrive; those that met are added up."""
    room = Room(before, after)
    panels = [*_panels(room), *_numbers_before(room)]
    frames = [{
        "title": f"{name}: before",
        "note": f"Each of {len(before)} ranks holds numbers of its own. What will it hold afterwards? "
                "(A dashed line: numbers that it keeps.)",
        "alt": f"{name}. Before: {_said(before)}",
        "shapes": panels,
    }]
    if name == "barrier":
        frames += _coming(room, panels)
    for title, note, shapes in _arriving(room, WORDS.get(name, "")):
        frames.append({
            "title": f"{name}: {title}",
            "note": note,
            "alt": f"{name}. After: {_said(after)}",
            "shapes": [*panels, *_lines(room), *shapes],
        })
    if name == "barrier":
        for rank in room.ranks:
            frames[-1]["shapes"].append(_token(room, rank, BOTTOM + HIGH + 12, COMPUTES))
    return {"size": [WIDTH, room.end + 34], "pace": 1800, "frames": frames}


def _said(held):
    holds = [f"rank {rank} holds {numbers or 'nothing'}" for rank, numbers in enumerate(held)]
    return f"{'; '.join(holds)}."


def _panels(room):
    for rank in room.ranks:
        middle = room.middle(rank)
        yield box(
            f"panel {rank}", room.panel * rank + GAP / 2, 28, room.panel - GAP, room.end,
            round=8,
            line=RANKS[rank],
            layer=-1,
        )
        yield words(f"rank {rank}", middle, 13, f"rank {rank}", "middle", bold=True)
        yield words(f"before {rank}", middle, 42, "before", "middle", size=14)
        yield words(f"after {rank}", middle, room.end + 13, "after", "middle", size=14)


def _numbers_before(room):
    for rank, numbers in enumerate(room.before):
        for place, number in enumerate(numbers):
            left = room.left(rank, place)
            yield room.cell(f"{rank}:{place}", left, TOP, number, fill=RANKS[rank])


def _coming(room, panels):
    """Frames until all have come to a barrier: one rank after another, rank 0 last."""
    order = [*room.ranks[1:], 0]
    bar = box("barrier", 0, 152, WIDTH, 10, fill="#777777")
    # The last frame of the scene shows what comes then: all have come, and compute below the barrier.
    for come in room.ranks:
        waiting = [_token(room, rank, 122, WAITS) for rank in order[:come]]
        computing = [_token(room, rank, 88, COMPUTES) for rank in order[come:]]
        missing = ", ".join(f"rank {rank}" for rank in sorted(order[come:]))
        yield {
            "title": f"barrier: {come} of {len(order)} ranks have come",
            "note": f"Still missing: {missing}.",
            "shapes": [*panels, bar, *waiting, *computing],
        }


def _token(room, rank, y, look):
    return box(
        f"token {rank}", room.middle(rank) - 38, y, 76, 26,
        size=14,
        **look,
    )


def _arriving(room, note):
    """The frames of what arrives, as (title, note, shapes): if any numbers meet, one before they are added up."""
    # A number of unknown origin is drawn like a sum: it, too, is none that a rank has sent.
    moved = [one for one in room.held if len(one.sources) == 1]
    made = [one for one in room.held if len(one.sources) != 1]
    summed = [one for one in made if one.sources]
    if summed:
        yield "the numbers have arrived", note, _arrived(room, room.held)
        first = summed[0]
        note = (f"Numbers that met have been added up: {room.addition(first)} = {first.number:g}. "
                f"Strips in a sum say whose numbers are in it.")
    yield "after", note, [*_arrived(room, moved), *_sums(room, made), *_nothing(room)]


def _arrived(room, held):
    """Copies of what ranks have given, before anything is added up: those that meet stand below one another."""
    for one in held:
        left = room.left(one.rank, one.column)
        for number, (sender, place) in enumerate(one.sources):
            begin = {"x": room.left(sender, place), "y": TOP}
            y = BOTTOM + ROW * (one.row + number)
            yield room.cell(
                f"{one.name} of {sender}", left, y, room.before[sender][place],
                fill=RANKS[sender],
                layer=1,
                **{"from": begin},
            )


def _sums(room, held):
    """Numbers that no rank held before. The copies that were added up shrink to strips in the sum."""
    for one in held:
        left = room.left(one.rank, one.column)
        y = BOTTOM + ROW * one.row
        yield room.cell(
            f"{one.name} sum", left, y, one.number,
            fill=SUM,
            line="#999999",
            tip=room.addition(one) or "nobody held this before",
        )
        # The strips have the copies' names: this is why the browser lets the copies shrink to them.
        for number, (sender, _) in enumerate(one.sources):
            wide = (room.step - 8) / len(one.sources)
            yield box(
                f"{one.name} of {sender}", left + 3 + wide * number, y + HIGH - 5, wide, 4,
                round=0,
                fill=RANKS[sender],
                layer=1,
            )


def _nothing(room):
    for rank in room.ranks:
        if room.after[rank] is None:
            yield words(f"nothing {rank}", room.middle(rank), BOTTOM + HIGH / 2, "nothing", "middle")


def _lines(room):
    """Who gives something to whom; a dashed line is what a rank keeps."""
    # A set, because one line is enough for all numbers that go the same way.
    pairs = set()
    for one in room.held:
        pairs.update((sender, one.rank) for sender, _ in one.sources)
    for sender, receiver in sorted(pairs):
        look = "dash" if sender == receiver else "arrow"
        yield path(
            f"line {sender} {receiver}", room.line(sender, receiver),
            line=RANKS[sender],
            width=2.5,
            layer=-1,
            **{look: True},
        )


def collectives_explorer(results, name):
    """Laboratory of collectives: who gives what to whom. A number's colour says which rank it comes from; sums are
    dark.

    `results` are {name: (before, after)}, as `held_after` takes them; `name` is the one to begin with.
    """
    controls = {}
    presets = {}
    if len(results) > 1:  # else there is nothing to choose
        controls["name"] = buttons("collective", name, results)
        for on_button, one in PRESETS.items():
            if one["values"]["name"] in results:
                presets[on_button] = one
    return Stage(
        "collectives_explorer",
        collectives_explorer.__doc__,
        lambda name=name: scene(name, *results[name]),
        controls,
        look="Press Play: who gives what to whom? A number's colour says which rank it comes from.",
        presets=presets,
    )
