"""The tokens explorer: the tokens of each rank are dots, above; the experts are below.

Rank by rank, the dots fly to the experts that the router has chosen, and pile up there. What finds no room is hollow,
and flies back.
"""

import math
from typing import NamedTuple

import torch

from helpers.widgets.shapes import PALE, RANKS, box, circle, doing, words
from helpers.widgets.stage import Stage, preset, slider

TOKENS = 32  #: of each rank; each is a dot
ROOMS = (1.0, 1.25, 2.0, 4.0, 8.0)
WIDE = 532  #: of all ranks together; right of that is the handle of the capacity
FLOOR = 352  #: where the experts' piles begin, which grow upwards
DOT = 14  #: from one dot to the next


def choices(ranks, liking):
    """[rank][token]: the expert that the router chooses. `liking` is added to expert 0's scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(ranks, TOKENS, ranks, generator=generator)
    scores[..., 0] += liking
    return scores.argmax(-1)


def capacity(ranks, room):
    """How many tokens of one rank an expert takes: `room` times the mean, but no more than a rank has."""
    return min(TOKENS, int(room * TOKENS / ranks))


def tokens_at(ranks, liking, room):
    """`(sent, kept)`: tokens of each rank (row) for each expert (column); those that its capacity takes."""
    sent = torch.stack([torch.bincount(chosen, minlength=ranks) for chosen in choices(ranks, liking)])
    return sent, sent.clamp(max=capacity(ranks, room))


class Hall(NamedTuple):
    """Where tokens lie: above at home with their ranks, below in the piles of the experts."""

    ranks: int
    capacity: int

    @property
    def column(self):
        """The width of a rank, and of its expert below."""
        return WIDE / self.ranks

    @property
    def across(self):
        """So many dots lie beside each other in a pile of one sender's tokens."""
        return max(1, 8 // self.ranks)

    @property
    def rise(self):
        """From one row of a pile to the next."""
        # All tokens of a rank must find a place in one pile, one beside the other or not.
        return min(DOT, 7 * self.across)

    @property
    def rows(self):
        """So many rows the capacity fills."""
        return math.ceil(self.capacity / self.across)

    @property
    def edge(self):
        """The y of the capacity."""
        return FLOOR - self.rise * self.rows - 1

    def middle(self, rank):
        return self.column * (rank + 0.5)

    def home(self, rank, token):
        """The middle of a token in its rank: four rows of eight."""
        row, place = divmod(token, 8)
        apart = min(DOT, self.column / 9)
        return self.middle(rank) + apart * (place - 3.5), 31 + DOT * row

    def place(self, rank, expert, number):
        """The middle of the token that is its sender's `number`th for the expert."""
        if number >= self.capacity:
            # What has no room lies in rows of its own, above the edge.
            number += self.rows * self.across - self.capacity
        row, place = divmod(number, self.across)
        pile = (self.column - 6) / self.ranks
        middle = self.column * expert + 3 + pile * (rank + 0.5)
        return middle + DOT * (place - (self.across - 1) / 2), FLOOR - self.rise * (row + 0.5)


def scene(ranks, liking, room):
    """A frame before, one for each sender, one in which the experts compute, one in which all is home again."""
    chosen = choices(ranks, liking).tolist()
    sent, kept = tokens_at(ranks, liking, room)
    hall = Hall(ranks, capacity(ranks, room))
    fixed = list(_fixed(hall))
    frames = []
    for number in range(ranks + 3):
        # What the first senders have sent until this frame; at its end all have.
        wanted = sent[:number].sum(0).tolist()
        got = kept[:number].sum(0).tolist()
        shapes = [*fixed, *_tokens(hall, chosen, number), *_counts(hall, wanted, got)]
        if number > ranks:
            shapes += _work(hall, got)
        title, note = _said(number, hall, wanted, got)
        frames.append({
            "title": title,
            "note": note,
            "alt": f"{title}. Tokens for each expert: {wanted}; it got {got}.",
            "shapes": shapes,
        })
    return {"size": [560, 440], "pace": 1300, "frames": frames}


def _fixed(hall):
    """Names, each expert's room, and the handle that changes it."""
    high = FLOOR + 1 - hall.edge
    for rank in range(hall.ranks):
        middle = hall.middle(rank)
        left = hall.column * rank + 2
        yield words(f"rank {rank}", middle, 11, f"rank {rank}", "middle", size=14)
        yield words(f"expert {rank}", middle, FLOOR + 13, f"expert {rank}", "middle", size=14)
        yield box(f"room {rank}", left, hall.edge, hall.column - 4, high, dash=True, layer=-1)
    said = f"dashed: room for {hall.capacity} tokens of each rank"
    yield words("capacity", WIDE / 2, 98, said, "middle")
    places = []
    for room in ROOMS:
        other = Hall(hall.ranks, capacity(hall.ranks, room))
        places.append([WIDE, other.edge - 9])
    drag = "room", places
    yield box("handle", WIDE, hall.edge - 9, 24, 18, text="↕", fill=PALE, drag=drag)


def _tokens(hall, chosen, number):
    """All tokens in the frame of that number."""
    for rank, experts in enumerate(chosen):
        before = [0] * hall.ranks  # tokens of this rank that have chosen each expert
        for token, expert in enumerate(experts):
            fits = before[expert] < hall.capacity
            look = {"fill": RANKS[rank]}
            if number > rank and not fits:
                look = {"line": RANKS[rank], "width": 1.5}
            # What is dropped goes home when the experts begin, all else when they have ended.
            back = hall.ranks + 2 if fits else hall.ranks + 1
            at = hall.home(rank, token)
            if rank < number < back:
                at = hall.place(rank, expert, before[expert])
            yield circle(f"{rank}.{token}", *at, 0.45 * hall.rise, **look)
            before[expert] += 1


def _counts(hall, wanted, got):
    """Below each expert how many tokens it has got, and how many had no room."""
    for expert, kept in enumerate(got):
        middle = hall.middle(expert)
        lost = wanted[expert] - kept
        yield words(f"got {expert}", middle, FLOOR + 50, f"● {kept}", "middle")
        if lost:
            yield words(f"lost {expert}", middle, FLOOR + 70, f"○ {lost}", "middle")


def _work(hall, got):
    """How long each expert computes, in front of how long the busiest one does: what is seen of that is waiting."""
    for expert, tokens in enumerate(got):
        left = hall.column * expert + 3
        wide = hall.column - 6
        busy = wide * tokens / max(got)
        yield box(f"wait {expert}", left, FLOOR + 25, wide, 13, **doing("waiting"))
        # It grows, as computing takes time.
        grows = {"from": {"w": 0}}
        yield box(f"work {expert}", left, FLOOR + 25, busy, 13, **doing("compute", **grows))


def _said(number, hall, wanted, got):
    """The title and the note of a frame."""
    ranks = hall.ranks
    lost = sum(wanted) - sum(got)
    if number == 0:
        title = f"Before: each of {ranks} ranks has {TOKENS} tokens and one expert"
        note = "The router has chosen an expert for each token. All ranks send at once; here one after the other."
    elif number <= ranks:
        title = f"Rank {number - 1} sends its tokens to their experts"
        note = f"Hollow: {lost} so far would find no room, and are not sent."
    elif number == ranks + 1:
        title = "The experts compute: blue is computing, dotted is waiting"
        note = f"The busiest has {max(got)} tokens. Each keeps room for {ranks * hall.capacity}, used or not."
    else:
        title = f"The results are home; {lost / sum(wanted):.0%} of the tokens are dropped"
        note = f"Of {sum(wanted)} tokens {lost} have met no expert: they skip the layer."
    return title, note


def tokens_explorer():
    """Tokens explorer: the tokens of each rank, as dots, travel to the experts that the router has chosen; what is
    more than an expert's capacity is hollow, and dropped."""
    # The capacity comes first, so that all of its values are stored: it can be dragged.
    controls = {"room": slider("capacity, times the mean", 2.0, ROOMS),
                "liking": slider("the router likes expert 0", 1.0, [0.0, 0.5, 1.0, 2.0, 4.0]),
                "ranks": slider("ranks, one expert each", 4, range(2, 9))}
    return Stage("tokens_explorer", tokens_explorer.__doc__, scene, controls,
                 look="Press Play. Which expert gets the most tokens, and which tokens find no room?",
                 presets={
                     "a fair router": preset("All experts are liked equally. Press Play: is anything dropped?",
                                             liking=0.0, room=1.0),
                     "a favourite": preset("Press Play. Who has to wait for whom now, and what is lost?", liking=4.0),
                     "room for all": preset("Press Play: nothing is dropped. What must every expert keep room for?",
                                            liking=4.0, room=4.0),
                 }, still=-2)
