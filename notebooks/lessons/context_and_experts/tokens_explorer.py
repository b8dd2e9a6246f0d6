"""The tokens explorer: tokens travel to the experts that the router has chosen; those without room are dropped."""

import math

import torch

from helpers.widgets.shapes import RANKS, box, circle, doing, words
from helpers.widgets.stage import Stage, preset, slider

TOKENS = 32  #: of each rank; each is a dot
ROOMS = (1.0, 1.25, 2.0, 4.0, 8.0)
#: By the number of ranks: so many dots lie beside each other in a pile of one sender's tokens.
ACROSS = {2: 4, 3: 3, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1}
SIZE = (560, 440)
WIDE = 532  #: of all ranks together; right of that is the handle of the capacity
HOME, FLOOR, HIGH = 24, 352, 232  #: where ranks keep their tokens; the floor of the experts' piles, and their room


def choices(ranks, liking):
    """[rank][token]: the expert that the router chooses. `liking` is added to expert 0's scores."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(ranks, TOKENS, ranks, generator=generator)
    scores[..., 0] += liking
    return scores.argmax(-1)


def capacity(ranks, room):
    """How many tokens of one rank an expert takes: `room` times the mean."""
    return int(room * TOKENS / ranks)


def tokens_at(ranks, liking, room):
    """`(sent, kept)`: tokens of each rank (row) for each expert (column); those that its capacity takes."""
    sent = torch.stack([torch.bincount(chosen, minlength=ranks) for chosen in choices(ranks, liking)])
    return sent, sent.clamp(max=capacity(ranks, room))


class Hall:
    """Where tokens lie: above at home with their ranks, below in the piles of the experts."""

    def __init__(self, ranks, most):
        """most: the capacity."""
        self.column = WIDE / ranks  # of a rank, and of its expert below
        self.across = ACROSS[ranks]
        self.pile = (self.column - 6) / ranks  # the width of one sender's pile
        self.apart = min(14, self.pile / self.across)
        self.rise = min(14, HIGH / math.ceil(max(TOKENS, most) / self.across))
        self.radius = 0.45 * min(self.apart, self.rise)
        self.full = math.ceil(most / self.across)  # rows that the capacity fills
        self.most = most

    def home(self, rank, token):
        """The middle of a token in its rank: four rows of eight."""
        apart = min(14, (self.column - 6) / 8)
        return self.column * (rank + 0.5) + apart * (token % 8 - 3.5), HOME + 14 * (token // 8 + 0.5)

    def place(self, rank, expert, number):
        """The middle of the token that is its sender's `number`th for the expert. What has no room lies above."""
        if number >= self.most:
            number += self.full * self.across - self.most
        row, place = divmod(number, self.across)
        middle = self.column * expert + 3 + self.pile * (rank + 0.5)
        return middle + self.apart * (place - (self.across - 1) / 2), FLOOR - self.rise * (row + 0.5)

    @property
    def edge(self):
        """The y of the capacity."""
        return FLOOR - self.rise * self.full - 1


def scene(ranks, liking, room):
    """A frame before, one for each sender, one in which the experts compute, one in which all is home again."""
    chosen = choices(ranks, liking).tolist()
    sent, kept = (table.tolist() for table in tokens_at(ranks, liking, room))
    hall = Hall(ranks, capacity(ranks, room))
    fixed = list(_fixed(hall, ranks))
    frames = []
    for number in range(ranks + 3):
        senders = range(min(number, ranks))
        wanted = [sum(sent[rank][expert] for rank in senders) for expert in range(ranks)]
        got = [sum(kept[rank][expert] for rank in senders) for expert in range(ranks)]
        shapes = [*fixed, *_tokens(hall, chosen, number), *_counts(hall, wanted, got)]
        if number > ranks:
            shapes += _work(hall, got)
        title, note = _said(number, sent, kept, hall.most)
        lost = 1 - sum(got) / max(1, sum(wanted))
        alt = f"{title}. {ranks} experts were chosen by {wanted} tokens and got {got}; {lost:.0%} are dropped."
        frames.append({"title": title, "note": note, "alt": alt, "shapes": shapes})
    return {"size": SIZE, "pace": 1300, "frames": frames}


def _fixed(hall, ranks):
    """Names, each expert's room, and the handle that changes it."""
    for rank in range(ranks):
        middle = hall.column * (rank + 0.5)
        yield words(f"rank {rank}", middle, 11, f"rank {rank}", "middle", size=14)
        yield words(f"expert {rank}", middle, FLOOR + 13, f"expert {rank}", "middle", size=14)
        yield box(f"room {rank}", hall.column * rank + 2, hall.edge, hall.column - 4, FLOOR + 1 - hall.edge,
                  dash=True, width=1.5, layer=-1)
    yield words("capacity", WIDE / 2, 98, f"dashed: room for {hall.most} tokens of each rank", "middle", size=15)
    places = [[WIDE + 2, Hall(ranks, capacity(ranks, room)).edge - 9] for room in ROOMS]
    yield box("handle", WIDE + 2, hall.edge - 9, 24, 18, text="↕", fill="#e8edf2", drag=("room", places),
              tip="the capacity: drag it")


def _tokens(hall, chosen, number):
    """All tokens in the frame of that number."""
    ranks = len(chosen)
    for rank, experts in enumerate(chosen):
        before = [0] * ranks  # tokens of this rank that have chosen each expert
        for token, expert in enumerate(experts):
            fits = before[expert] < hall.most
            look = {"fill": RANKS[rank]}
            if number > rank and not fits:
                look = {"line": RANKS[rank], "width": 1.5}
            # What is dropped goes home when the experts begin, all else when they have ended.
            away = rank < number <= (ranks + 1 if fits else ranks)
            at = hall.place(rank, expert, before[expert]) if away else hall.home(rank, token)
            yield circle(f"{rank}.{token}", *at, hall.radius, **look)
            before[expert] += 1


def _counts(hall, wanted, got):
    """Below each expert how many tokens it has got, and how many had no room."""
    for expert, (all_, some) in enumerate(zip(wanted, got, strict=True)):
        middle = hall.column * (expert + 0.5)
        yield words(f"got {expert}", middle, FLOOR + 50, f"● {some}", "middle", size=15)
        if all_ > some:
            yield words(f"lost {expert}", middle, FLOOR + 70, f"○ {all_ - some}", "middle", size=15)


def _work(hall, got):
    """How long each expert computes, and then waits for the busiest."""
    for expert, tokens in enumerate(got):
        left, wide = hall.column * expert + 3, hall.column - 6
        busy = wide * tokens / max(got)
        grows = {"from": {"w": 0}, "round": 0}
        if busy:
            yield box(f"work {expert}", left, FLOOR + 25, busy, 13, **doing("compute"), **grows)
        if busy < wide:
            yield box(f"wait {expert}", left + busy, FLOOR + 25, wide - busy, 13, **doing("waiting"), **grows)


def _said(number, sent, kept, most):
    """The title and the note of a frame."""
    ranks = len(sent)
    if number == 0:
        return (f"Before: each of {ranks} ranks has {TOKENS} tokens and one expert",
                "The router has chosen an expert for each token. All ranks send at once; here one after the other.")
    if number <= ranks:
        row, lost = sent[number - 1], sum(sent[number - 1]) - sum(kept[number - 1])
        fate = f"Hollow: {lost} would find no room, and are not sent." if lost else "All of them find room."
        return (f"Rank {number - 1} sends its tokens to their experts",
                f"For experts 0 to {ranks - 1}: {', '.join(map(str, row))}. {fate}")
    got = [sum(column) for column in zip(*kept, strict=True)]
    if number == ranks + 1:
        idle = 1 - sum(got) / (ranks * max(got))
        return ("The experts compute: blue is computing, dotted is waiting",
                f"The busiest has {max(got)} tokens, and keeps room for {ranks * most}. Of all the time, {idle:.0%} is "
                "waiting for it.")
    lost = ranks * TOKENS - sum(got)
    return (f"The results are home; {lost / (ranks * TOKENS):.0%} of the tokens are dropped",
            f"Of {ranks * TOKENS} tokens {lost} have met no expert: they skip the layer.")


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
