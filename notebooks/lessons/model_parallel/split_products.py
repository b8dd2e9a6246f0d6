"""Products of matrices in pieces: what each rank holds, computes and sends if weights are cut by columns or by rows.

One layer is Y = X·W. Two layers are H = relu(X·A) and Y = H·B. A row of X is a token. (`nn.Linear` stores its weight
with rows and columns swapped.)
"""

from typing import NamedTuple

import numpy

COLUMNS, ROWS = "columns", "rows"
#: How the weights of a layer, or of two, are cut.
SPLITS = {"columns": (COLUMNS,), "rows": (ROWS,), "columns, then rows": (COLUMNS, ROWS),
          "rows, then columns": (ROWS, COLUMNS)}
X = numpy.array([[2, 2, 1, 2], [2, 2, 3, 1], [1, 3, 3, 1], [2, 2, 0, 1]])
FIRST = numpy.array([[1, 1, 0, 1], [1, -1, -1, 2], [1, -1, -1, -1], [2, 1, 3, -1]])
SECOND = numpy.array([[1, 1, 1, 1], [2, 1, 1, 1], [3, -1, 2, 1], [3, 1, -1, -1]])
WEIGHTS = ("W", "A", "B")
SIZE = 4  #: rows and columns of each matrix
FLOAT = 4  #: bytes of a number, as of torch.float32


class Number(NamedTuple):
    """A number that a rank holds in one place of a matrix."""

    value: int
    maker: int | None = None  # the rank that brought or computed it; None if all ranks have it from the beginning
    is_term: bool = False  # whether the other ranks' terms have to be added to it


class Message(NamedTuple):
    """What one rank sends to another one."""

    sender: int
    receiver: int
    places: list  # [(row, column)] of the matrix that the moment names


class Moment(NamedTuple):
    """What all ranks hold after they have done one thing."""

    act: str  # "start", "product", "relu", "reduce-scatter" or "all-gather"
    matrix: str  # the one that was changed
    held: dict  # {matrix: for each rank, {(row, column): Number}}
    messages: list
    is_half: bool = False  # of an all-reduce

    def bytes_held(self, rank):
        """Those of weights, and those of all else."""
        weights = FLOAT * sum(len(by_rank[rank]) for matrix, by_rank in self.held.items() if matrix in WEIGHTS)
        return weights, FLOAT * sum(len(by_rank[rank]) for by_rank in self.held.values()) - weights

    def bytes_sent(self, rank):
        """In this moment alone."""
        return FLOAT * sum(len(message.places) for message in self.messages if message.sender == rank)


def layers(split):
    """[(input, weight, output, cut)], by name."""
    cuts = SPLITS[split]
    names = [("X", "W", "Y")] if len(cuts) == 1 else [("X", "A", "H"), ("H", "B", "Y")]
    return [(*three, cut) for three, cut in zip(names, cuts, strict=True)]


def factors_of(output, split):
    """The names of the two matrices whose product this is."""
    return next((left, weight) for left, weight, product, _ in layers(split) if product == output)


def matrices(split):
    """{name: matrix} of what is known before: the input and the weights."""
    weights = [weight for _, weight, _, _ in layers(split)]
    return {"X": X, **dict(zip(weights, (FIRST, SECOND), strict=False))}


def part(rank, ranks):
    """The numbers of the rows, or columns, that belong to a rank."""
    each = SIZE // ranks
    return range(rank * each, (rank + 1) * each)


def _cut(matrix, ranks, rows, columns):
    """For each rank, its piece of a matrix; rows and columns are whether it is cut along them."""
    pieces = []
    for rank in range(ranks):
        maker = rank if rows or columns else None
        own = part(rank, ranks)
        pieces.append({(row, column): Number(int(matrix[row, column]), maker)
                       for row in (own if rows else range(SIZE)) for column in (own if columns else range(SIZE))})
    return pieces


def factors(left, right, row, column):
    """The pairs of numbers of a row and a column that a rank holds, from its two pieces."""
    return [(left[row, middle].value, right[middle, column].value) for middle in range(SIZE)
            if (row, middle) in left and (middle, column) in right]


def _multiplied(left, right, rank, is_term):
    """A rank's own product of its two pieces."""
    product = {}
    for row in sorted({row for row, _ in left}):
        for column in sorted({column for _, column in right}):
            pairs = factors(left, right, row, column)
            product[row, column] = Number(sum(one * other for one, other in pairs), rank, is_term)
    return product


def _reduce_scatter(pieces, keeps_terms):
    """Each rank adds up the terms of its own rows, which all others send to it. Returns pieces and messages.

    keeps_terms: whether the terms of other rows stay, as in an all-reduce, which will put the sums in their place.
    """
    ranks = len(pieces)
    sums, messages = [], []
    for owner in range(ranks):
        places = [place for place in pieces[owner] if place[0] in part(owner, ranks)]
        kept = dict(pieces[owner]) if keeps_terms else {}
        for place in places:
            kept[place] = Number(sum(piece[place].value for piece in pieces), owner)
        sums.append(kept)
        messages += [Message(rank, owner, places) for rank in range(ranks) if rank != owner]
    return sums, messages


def _all_gather(pieces):
    """Each rank sends to all others what it has brought or computed itself. Returns pieces and messages."""
    whole, messages = {}, []
    for rank, piece in enumerate(pieces):
        own = {place: number for place, number in piece.items() if number.maker == rank and not number.is_term}
        whole.update(own)
        messages += [Message(rank, other, list(own)) for other in range(len(pieces)) if other != rank]
    return [dict(whole) for _ in pieces], messages


def moments(split, ranks, sequence=False):
    """What happens in forward, as `Moment`s.

    split: A key of `SPLITS`.
    ranks: 2 or 4.
    sequence: Whether what goes in and what comes out is cut by tokens, for "columns, then rows" (sequence parallel).
    """
    found = []
    held = {"X": _cut(X, ranks, sequence, SPLITS[split][0] == ROWS)}
    for _, weight, _, cut in layers(split):
        held[weight] = _cut(matrices(split)[weight], ranks, cut == ROWS, cut == COLUMNS)

    def note(act, matrix, pieces, messages=(), is_half=False):
        held[matrix] = pieces
        found.append(Moment(act, matrix, dict(held), list(messages), is_half))

    def all_reduce(matrix):
        note("reduce-scatter", matrix, *_reduce_scatter(held[matrix], keeps_terms=True), is_half=True)
        note("all-gather", matrix, *_all_gather(held[matrix]), is_half=True)

    note("start", "X", held["X"])
    if sequence:
        own_tokens = held["X"]
        note("all-gather", "X", *_all_gather(held["X"]))
    for left, weight, output, cut in layers(split):
        pairs = zip(held[left], held[weight], strict=True)
        note("product", output, [_multiplied(*pair, rank, cut == ROWS) for rank, pair in enumerate(pairs)])
        if sequence and left == "X":
            held["X"] = own_tokens  # forward does not need those of the other ranks any more
        if output == "H":
            if cut == ROWS:
                all_reduce("H")
            note("relu", "H", [{place: number._replace(value=max(0, number.value)) for place, number in piece.items()}
                               for piece in held["H"]])
    if cut == COLUMNS:
        note("all-gather", "Y", *_all_gather(held["Y"]))
    elif sequence:
        note("reduce-scatter", "Y", *_reduce_scatter(held["Y"], keeps_terms=False))
    else:
        all_reduce("Y")
    return found
