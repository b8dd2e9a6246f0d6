"""The product explorer: matrices on each rank, in pieces; what a rank computes and sends, and one number followed.

`split_products.moments` says what happens. Here it is drawn: a lane for each rank, below it how a number came about.
"""

from itertools import product
from typing import NamedTuple

from helpers.widgets.shapes import PALE, RANKS, box, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset, slider
from lessons.model_parallel.split_products import (
    COLUMNS,
    ROWS,
    SIZE,
    SPLITS,
    factors,
    factors_of,
    layers,
    moments,
    part,
)

BOTH = "columns, then rows"
#: Where the matrices begin, and how much room they have, in units of the scene.
LEFT, TOP, WIDE = 62, 32, 494
#: From a line of what is told below to the next one.
LINE = 21
#: Colours of a rank's terms: paler than what is finished.
TERMS = ("#cfe4f2", "#f9dcc8", "#c8ebdf", "#f6e2ed")
MARK = {"line": "#111111", "width": 2.5, "layer": 1}
PLACES = {f"row {row + 1}, column {column + 1}": SIZE * row + column
          for row, column in product(range(SIZE), repeat=2)}


class Layout(NamedTuple):
    """Where everything stands, in units of the scene."""

    left: dict  # {matrix: its left edge}
    size: int  # of the words in the matrices
    wide: float  # a number's place
    high: float
    lane: float  # from a rank to the next one
    bottom: float  # of all lanes

    def at(self, matrix, rank, row, column):
        return self.left[matrix] + self.wide * column, TOP + self.lane * rank + self.high * row


def layout(split, ranks):
    names = ["X"]
    for _, weight, output, _ in layers(split):
        names += [weight, output]
    wide = 32 if len(names) == 3 else 22
    gap = (WIDE - len(names) * SIZE * wide) / (len(names) - 1)
    left = {name: LEFT + number * (SIZE * wide + gap) for number, name in enumerate(names)}
    size = 14 if ranks == 4 else 16
    high = 1.25 * size  # as far as the lines of a text are apart: a box may hold a column of numbers
    lane = SIZE * high + (6 if ranks == 4 else 12)
    return Layout(left, size, wide, high, lane, TOP + ranks * lane)


def scene(split, ranks, sequence, marked):
    """A frame for each moment. marked: the number that is followed, a value of `PLACES`."""
    sequence = sequence and split == BOTH
    place = divmod(marked, SIZE)
    where = layout(split, ranks)
    fixed = list(_lanes(where, ranks))
    frames = []
    before, sent, tips = None, 0, {}  # a number keeps its tip until something is done with it again
    for moment in moments(split, ranks, sequence):
        ways = {other: workings(before, moment, split, other) for other in product(range(SIZE), repeat=2)}
        for other, by_rank in ways.items():
            for rank, text in by_rank.items():
                tips[moment.matrix, rank, other] = text
        # All ranks hold and send equally much, because all pieces are equally large.
        sent += moment.bytes_sent(0)
        title, note = _said(moment, split, sequence, sent)
        weights, activations = moment.bytes_held(0)
        numbers = f"Each rank: weights {weights} bytes, activations {activations}, sent {sent}"
        frames.append({
            "title": title,
            "note": note,
            "alt": f"{title}. {numbers}. {_in_words(moment, ways[place])}",
            "shapes": [
                *fixed,
                *_heads(where, moment),
                *_numbers(where, moment, tips),
                *_marks(where, moment, split, place),
                *_messages(where, moment),
                words("numbers", 4, where.bottom + 12, numbers, size=16, late=True),
                *_told(where, moment, place, ways[place]),
            ],
        })
        before = moment
    off = [] if split == BOTH else ["sequence"]
    return {"size": [560, where.bottom + 46 + ranks * LINE], "pace": 2400, "frames": frames, "off": off}


def _lanes(where, ranks):
    """The ranks' names, and a pale place for each matrix."""
    for rank in range(ranks):
        top = TOP + where.lane * rank
        high = SIZE * where.high
        yield box(f"rank {rank}", 4, top, 50, high - 1, fill=RANKS[rank], text=f"rank {rank}", size=14)
        for matrix, left in where.left.items():
            yield box(f"{matrix}{rank}", left, top, SIZE * where.wide - 1, high - 1, fill="#888888", opacity=0.15,
                      layer=-1)


def called(matrix, moment):
    """What a matrix is called in this moment: it is H once relu has been applied."""
    is_before = moment.act != "relu" and "Y" not in moment.held
    return "X·A" if matrix == "H" and is_before else matrix


def _heads(where, moment):
    for matrix, left in where.left.items():
        name = called(matrix, moment)
        if name == "H":
            name = "H = relu(X·A)"
        yield words(f"head {matrix}", left + SIZE * where.wide / 2, 16, name, "middle", bold=True, size=15)


def _fill(number):
    """What all ranks have is grey, a rank's own in its colour; a term of a sum is pale."""
    if number.maker is None:
        return PALE
    return (TERMS if number.is_term else RANKS)[number.maker]


def _numbers(where, moment, tips):
    """What each rank holds. A product's numbers can be clicked; of other matrices a box is a column's piece."""
    for matrix, by_rank in moment.held.items():
        for rank, piece in enumerate(by_rank):
            if matrix in ("H", "Y"):
                for (row, column), number in piece.items():
                    # Late: what a message changes, changes when it has arrived.
                    yield _box(where, matrix, rank, [(row, column)], [number], late=True,
                               click={"marked": SIZE * row + column}, tip=tips[matrix, rank, (row, column)])
            else:
                for places in _runs(piece):
                    yield _box(where, matrix, rank, places, [piece[place] for place in places])


def _runs(piece):
    """The places of a piece, in runs down a column with one maker."""
    runs = []
    for place in sorted(piece, key=lambda place: (place[1], place[0])):
        row, column = place
        above = row - 1, column
        if runs and runs[-1][-1] == above and piece[above].maker == piece[place].maker:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _box(where, matrix, rank, places, numbers, **more):
    row, column = places[0]
    x, y = where.at(matrix, rank, row, column)
    text = "\n".join(str(number.value) for number in numbers)
    return box(f"{matrix}{rank}{row}{column}", x, y, where.wide - 1, where.high * len(places) - 1, text=text,
               size=where.size, fill=_fill(numbers[0]), **more)


def _marks(where, moment, split, place):
    """Frames around the marked number on each rank, and around the row and the column that it comes from."""
    row, column = place
    if moment.act == "start":
        return
    for rank, piece in enumerate(moment.held[moment.matrix]):
        if place not in piece:
            continue
        yield _frame(where, f"mark {rank}", moment.matrix, rank, [place])
        if moment.act == "product":
            left, weight = factors_of(moment.matrix, split)
            across = [one for one in moment.held[left][rank] if one[0] == row]
            down = [one for one in moment.held[weight][rank] if one[1] == column]
            yield _frame(where, f"row {rank}", left, rank, across)
            yield _frame(where, f"column {rank}", weight, rank, down)


def _block(where, matrix, rank, places):
    """x, y, width and height of what lies around all these places."""
    x, y = where.at(matrix, rank, *min(places))
    right, bottom = where.at(matrix, rank, *max(places))
    return x, y, right + where.wide - 1 - x, bottom + where.high - 1 - y


def _frame(where, name, matrix, rank, places):
    x, y, w, h = _block(where, matrix, rank, places)
    return box(name, x + 1, y + 1, w - 2, h - 2, round=0, **MARK)


def _messages(where, moment):
    for message in moment.messages:
        x, y, w, h = _block(where, moment.matrix, message.receiver, message.places)
        _, begin, _, _ = _block(where, moment.matrix, message.sender, message.places)
        yield box(f"message {message.sender}{message.receiver}", x, y, w, h, fill=RANKS[message.sender], layer=1,
                  text="+" if moment.act == "reduce-scatter" else None, passes=True, **{"from": {"y": begin}})


def workings(before, moment, split, place):
    """How the number in this place came about: {rank: its words} of the ranks that have done something for it."""
    pieces = moment.held[moment.matrix]
    found = {}
    for rank, piece in enumerate(pieces):
        if place not in piece:
            continue
        value, maker, _ = piece[place]
        if moment.act == "product":
            left, weight = factors_of(moment.matrix, split)
            pairs = factors(moment.held[left][rank], moment.held[weight][rank], *place)
            products = [f"{_in_brackets(one)}·{_in_brackets(other)}" for one, other in pairs]
            found[rank] = f"{' + '.join(products)} = {value}"
        elif moment.act == "relu":
            found[rank] = f"relu({before.held['H'][rank][place].value}) = {value}"
        elif moment.act == "reduce-scatter" and place[0] in part(rank, len(pieces)):
            terms = [_in_brackets(other[place].value) for other in before.held[moment.matrix]]
            found[rank] = f"{' + '.join(terms)} = {value}"
        elif moment.act == "all-gather" and maker != rank:
            found[rank] = f"got {value} from rank {maker}"
    return found


def _in_brackets(number):
    return f"({number})" if number < 0 else str(number)


def _in_words(moment, way):
    return " ".join(f"Rank {rank}, {called(moment.matrix, moment)}: {text}." for rank, text in way.items())


def _told(where, moment, place, way):
    """Below the lanes: how the marked number came about."""
    row, column = place
    top = where.bottom + 36
    heading = "Click a number of a product, once it is there, to see how it comes about."
    if way:
        heading = f"The marked number of {called(moment.matrix, moment)}, row {row + 1}, column {column + 1}:"
    yield words("told", 4, top, heading, size=15)
    for number, (rank, text) in enumerate(way.items()):
        y = top + 10 + LINE * number
        yield box(f"line {rank}", 4, y + 1, 50, LINE - 3, fill=RANKS[rank], text=f"rank {rank}", size=13)
        yield words(f"text {rank}", 62, y + LINE / 2, text, size=16)


def _said(moment, split, sequence, sent):
    """The title and the note of a frame."""
    title, note = {
        "start": _at_first,
        "product": _multiplied,
        "relu": _applied,
        "reduce-scatter": _added_up,
        "all-gather": _gathered,
    }[moment.act](moment, split, sequence)
    if moment.matrix == "Y" and moment.act in ("reduce-scatter", "all-gather"):
        note += f" Each rank has sent {sent} bytes so far."
    return title, note


def _at_first(moment, split, sequence):
    title = f"Before: what each of {len(moment.held['X'])} ranks holds"
    if sequence:
        return title, "Each rank holds its tokens, the rows of X, and its columns of A and rows of B."
    return title, {
        "columns": "A row of X is a token. Each rank holds all of X, and its own columns of W.",
        "rows": "A row of X is a token. Each rank holds its own rows of W, and those columns of X that meet them.",
        BOTH: "Each rank holds all of X, its columns of A and its rows of B.",
        "rows, then columns": "Each rank holds its rows of A, those columns of X that meet them, and its columns of B.",
    }[split]


def _multiplied(moment, split, sequence):
    name = called(moment.matrix, moment)
    cut = next(cut for _, _, output, cut in layers(split) if output == moment.matrix)
    if cut == COLUMNS:
        return f"Each rank computes its columns of {name}", "These numbers are finished. Nothing is sent."
    note = "Nothing is sent. A pale number is one term of a sum, whose other terms the other ranks have."
    if moment.matrix == "Y" and split == BOTH:
        note = "Its rows of B need just the columns of H that it has. A pale number is one term of a sum."
    return f"Each rank computes a term of each number of {name}", note


def _applied(moment, split, sequence):
    note = "relu looks at each number alone, so a rank's own columns are enough. Nothing is sent."
    if SPLITS[split][0] == ROWS:
        note = "relu had to wait for the sums: if each rank applied it to its terms, the sums would be other numbers."
    elif sequence:
        note = ("Nothing is sent. Each rank drops the other ranks' tokens of X. Backward will need them again, for the "
                "gradient of A.")
    return "Each rank applies relu", note


def _added_up(moment, split, sequence):
    if sequence:
        return ("Reduce-scatter: the terms are added up",
                "Each rank adds up the terms of its own tokens, which the others send, and keeps these only.")
    return ("All-reduce, first half: the terms are added up",
            "Each rank adds up the terms of some rows, which the others send to it. (This half is a reduce-scatter.)")


def _gathered(moment, split, sequence):
    if moment.is_half:
        return ("All-reduce, second half: all ranks get the sums",
                "Each rank sends its sums to the others. (This half is an all-gather.)")
    if sequence:
        return "All-gather: all ranks get all tokens of X", "Each rank's columns of A meet every token."
    return ("All-gather: all ranks get all columns",
            "No all-gather is needed where each rank goes on with its own columns.")


def product_explorer():
    """A product in pieces: weights cut by columns or by rows, on two or four ranks; step by step, what each rank holds,
    computes and sends, and how a number came about."""
    controls = {
        "split": buttons("weights cut by", BOTH, SPLITS),
        "ranks": buttons("ranks", 2, (2, 4)),
        "sequence": checkbox("sequence parallel"),
        "marked": slider("marked number", 2, PLACES.items()),
    }
    presets = {
        "by columns": preset("One layer, Y = X·W. Press Play. Which numbers of Y does a rank compute?",
                             split="columns"),
        "by rows": preset("Press Play. Each rank fills all of Y. What is in its numbers, and what is missing?",
                          split="rows"),
        "rows first": preset("Press Play. When must something be sent now, and how many bytes in the end?",
                             split="rows, then columns"),
        "sequence parallel": preset("Press Play. What is sent, and when? Remove the tick: which numbers change?",
                                    sequence=True),
    }
    return Stage("product_explorer", product_explorer.__doc__, scene, controls,
                 look="Two layers. Press Play. When does a rank first need what another one has?",
                 presets=presets, still=3, room=105_000)
