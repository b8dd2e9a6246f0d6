"""Two explorers: who computes which pairs at which step of the ring, and which expert gets whose tokens."""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.widgets.explorer import Explorer, buttons, choice, slider, wipe
from lessons.context_and_experts.cuts import CUTS, pairs

TOKENS = 64


def colours(ranks):
    cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return torch.tensor([to_rgb(cycle[rank]) for rank in range(ranks)])


def length_for(ranks):
    """About `TOKENS`, in 2 · ranks equal pieces."""
    return TOKENS // (2 * ranks) * 2 * ranks


def pairs_at(cut, ranks, step):
    """`(work, slowest)` of the first steps of the ring: pairs by rank and step; by step, the slowest's."""
    where = CUTS[cut](length_for(ranks), ranks)
    work = [[pairs(where[rank], where[(rank - s) % ranks]) for s in range(step)] for rank in range(ranks)]
    return work, [max(column) for column in zip(*work, strict=True)]


def picture_of(cut, ranks, step):
    """T × T colours: strong for pairs of this step, pale for earlier ones, grey for later ones."""
    length = length_for(ranks)
    where = CUTS[cut](length, ranks)
    picture, own = torch.ones(length, length, 3), colours(ranks)
    for rank, rows in enumerate(where):
        for s in range(ranks):
            columns = where[(rank - s) % ranks]
            strength = 1.0 if s == step - 1 else 0.4
            colour = 1 - strength * (1 - own[rank]) if s < step else torch.full((3,), 0.88)
            seen = (rows[:, None] >= columns)[..., None]
            picture[rows[:, None], columns] = torch.where(seen, colour, torch.ones(3))
    return picture.numpy()


def pairs_explorer():
    """Pairs explorer: set the cut, the ranks and the step of the ring; the picture shows which rank computes
    which pairs of tokens, and how long the ranks wait for the slowest."""
    controls = {"cut": buttons("Cut", CUTS), "ranks": slider("Ranks", 4, 2, 8),
                "step": slider("Steps done", 2, 1, 4)}
    controls["ranks"].observe(lambda change: setattr(controls["step"], "max", change["new"]), names="value")
    presets = {
        "the whole ring": ({"step": 1}, "Press Play. In which steps does rank 0 compute anything?"),
        "zigzag": ({"cut": "zigzag", "step": 1}, "Press Play. Who waits now?"),
        "8 ranks": ({"ranks": 8, "step": 8}, "A contiguous cut: do more ranks wait more?"),
    }
    figure = Figure(figsize=(9, 4), layout="none")
    square, bars = figure.add_axes((0.07, 0.13, 0.38, 0.76)), figure.add_axes((0.55, 0.13, 0.44, 0.76))

    def redraw(cut, ranks, step):
        step = min(step, ranks)  # while the number of ranks changes
        wipe(bars)
        square.clear()
        square.imshow(picture_of(cut, ranks, step), interpolation="nearest")
        square.set(title=f"{cut}: {step} of {ranks} steps", xlabel="key", ylabel="query")
        square.grid(False)
        work, slowest = pairs_at(cut, ranks, step)
        done = [sum(row) for row in work]
        bars.barh(range(ranks), done, color=colours(ranks).tolist())
        bars.barh(range(ranks), [sum(slowest) - one for one in done], left=done, color="white",
                  edgecolor=ACTIVITIES["waiting"], hatch=HATCHES["waiting"])
        idle = 1 - sum(done) / (ranks * sum(slowest))
        bars.set(title=f"Pairs by rank; dots: waiting, {idle:.0%}", xlabel="pairs", ylabel="rank",
                 yticks=range(ranks), xlim=(0, 1.05 * TOKENS * TOKENS / ranks), ylim=(ranks - 0.5, -0.5))
        figure.set_label(f"{cut} cut, {ranks} ranks, after {step} of {ranks} steps of the ring: pairs by "
                         f"rank {done}; the ranks wait for {idle:.0%} of the time.")
        return figure

    return Explorer(controls, redraw, pairs_explorer.__doc__,
                    "Strong colours are this step, grey is to come. Who waits for whom?", presets, "step")


def tokens_at(ranks, liking, room):
    """`(sent, kept)`: tokens of each rank (row) for each expert (column); those that its capacity takes."""
    torch.manual_seed(0)
    scores = torch.randn(ranks, TOKENS, ranks)
    scores[..., 0] += liking
    sent = torch.stack([torch.bincount(row, minlength=ranks) for row in scores.argmax(-1)])
    return sent, sent.clamp(max=int(room * TOKENS / ranks))


def tokens_explorer():
    """Tokens explorer: set the ranks, how much the router likes expert 0, and the capacity; the picture shows
    whose tokens each expert gets, and which are dropped."""
    controls = {"ranks": slider("Ranks, one expert each", 4, 2, 8),
                "liking": choice("The router likes expert 0", 1.0, [0.0, 0.5, 1.0, 2.0, 4.0]),
                "room": choice("Capacity, times the mean", 2.0, [1.0, 1.25, 2.0, 4.0, 8.0])}
    presets = {
        "a fair router": ({"liking": 0.0, "room": 1.0},
                          "All experts are liked equally. Is anything dropped?"),
        "a favourite": ({"liking": 4.0}, "Who has to wait for whom now, and what is lost?"),
        "room for all": ({"liking": 4.0, "room": 4.0},
                         "Nothing is dropped. What must every expert keep room for?"),
    }
    figure = Figure(figsize=(9, 3.4), layout="none")
    ax = figure.add_axes((0.07, 0.15, 0.92, 0.73))

    def redraw(ranks, liking, room):
        wipe(ax)
        sent, kept = tokens_at(ranks, liking, room)
        left, names = torch.zeros(ranks), range(ranks)
        for rank, colour in enumerate(colours(ranks).tolist()):
            ax.barh(names, kept[rank], left=left, color=colour, edgecolor="white")
            left = left + kept[rank]
        lost = sent.sum(0) - kept.sum(0)
        ax.barh(names, lost, left=left, color="white", edgecolor=ACTIVITIES["waiting"], hatch="xx")
        share = (lost.sum() / sent.sum()).item()
        ax.set(title=f"A colour for each sender; crossed: dropped, {share:.0%}", xlabel="tokens",
               ylabel="expert", yticks=names, xlim=(0, TOKENS * ranks), ylim=(ranks - 0.5, -0.5))
        figure.set_label(f"{ranks} experts get {sent.sum(0).tolist()} tokens; with room for {room:g} times "
                         f"the mean, {share:.0%} are dropped.")
        return figure

    return Explorer(controls, redraw, tokens_explorer.__doc__,
                    "Which expert gets the most tokens, and which of them are crossed out?", presets)
