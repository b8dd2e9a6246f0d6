"""The pipeline explorer: ranks in a row, by six schedules.

Messages glide from rank to rank: a forward to the right, a backward to the left. Above each rank grows and shrinks the
pile of activations that it holds. Below, in lanes of time, bars grow for what each rank does.
"""

import math
from typing import NamedTuple

from helpers.figures import HELD
from helpers.widgets.shapes import Lanes, box, doing, key, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from lessons.model_parallel.pictures import SHADES
from lessons.model_parallel.schedules import (
    COST,
    cost,
    dual_pipe_v,
    gpipe,
    interleaved,
    messages,
    one_f_one_b,
    parts,
    parts_of,
    ranks_of_stages,
    receiver,
    simulate,
    stage_of,
    zero_bubble_1p,
    zero_bubble_v,
)

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "Interleaved": interleaved, "ZB-1P": zero_bubble_1p,
             "ZB-V": zero_bubble_v, "DualPipeV": dual_pipe_v}
#: Those with two stages on each rank, laid out like a V.
LIKE_A_V = ("ZB-V", "DualPipeV")
#: A backward is darker than a forward, whole or in parts. On a dark page its edge tells it from the background.
LOOKS = {"F": {"fill": SHADES["F"]}}
LOOKS |= {kind: {"fill": SHADES["B"], "line": "#8fa2ff"} for kind in "BIW"}
LOOKS["I"] |= {"hatch": "///"}
LOOKS["W"] |= {"hatch": "xx"}
MEANINGS = {"F": "forward", "B": "backward", "I": "of input", "W": "of weights"}
#: Narrow enough that its words can be read in JupyterLab on a telephone, where it is about 270 pixels wide.
WIDE = 440
TOP = 138  #: of the ranks' boxes; above them are the piles
HIGH = 38
LEGEND = 207  #: between the ranks' names and the lanes
MESSAGE = 22  #: the width of a message
RISE = 16  #: from one row of a pile to the next
BESIDE = 5  #: so many activations of whole micro-batches lie beside each other in a pile


class Task(NamedTuple):
    """A forward, a backward or a part of a backward, of a micro-batch in a stage."""

    rank: int
    kind: str  # "F", "B", "I" or "W"
    micro_batch: int
    name: str  # the micro-batch's number, with a mark ′ for the rank's second stage, two for the third
    begin: int
    end: int
    to: int  # the other rank that gets its result, or None

    @property
    def share(self):
        """Of the rank's height: one of a pair shares it."""
        return 1 if self.end - self.begin == COST[self.kind] else 0.5


class Held(NamedTuple):
    """Activations that a rank holds, from the begin of a forward to the end of its backward, or of its W."""

    rank: int
    name: str
    place: int  # in the rank's pile: the lowest one that is free
    begin: int
    end: int


class Row(NamedTuple):
    """Where the ranks stand, and how large the activations in their piles are."""

    ranks: int
    per_rank: int  # stages of each rank
    places: int  # of the largest pile

    @property
    def column(self):
        return WIDE / self.ranks

    @property
    def wide(self):
        """The width of a rank's box."""
        return min(84, self.column - 12)

    @property
    def cell(self):
        """The width of what is held: a stage that is one of v holds a v-th."""
        return min(24, (self.column - 8) / BESIDE) / self.per_rank

    def middle(self, rank):
        return self.column * (rank + 0.5)

    def place(self, rank, number):
        """Left and top of a place in a rank's pile."""
        across = min(BESIDE * self.per_rank, self.places)
        row, column = divmod(number, across)
        left = self.middle(rank) + self.cell * (column - across / 2)
        return left, TOP - 6 - RISE * (row + 1)


def scene(schedule, ranks, micro_batches, v):
    """A frame for each unit of time, or for several if there are many tasks; and one in which all is done."""
    off = []
    asked = micro_batches
    if schedule == "Interleaved":
        micro_batches = math.ceil(micro_batches / ranks) * ranks
        orders = [interleaved(rank, ranks, micro_batches, v) for rank in range(ranks)]
    else:
        off, v = ["v"], 2 if schedule in LIKE_A_V else 1
        if schedule == "DualPipeV":
            micro_batches = max(micro_batches, 2 * ranks)
        orders = [SCHEDULES[schedule](rank, ranks, micro_batches) for rank in range(ranks)]
    timeline = simulate(orders)
    kinds = {kind for order in orders for kind, *_ in parts_of(order)}
    lanes = _lanes(ranks, timeline.end, kinds)
    frames = _frames(timeline, v, lanes, kinds)
    meaning = "F is a forward"
    if micro_batches > asked:
        meaning = f"{schedule} cannot take {asked}, so it takes {micro_batches}. {meaning}"
    if "B" in kinds:
        meaning += ", B a backward, which takes twice as long"
    if "W" in kinds:
        meaning += "; I and W are a backward's halves: the gradient of the input, and (crossed) those of the weights"
    if schedule == "DualPipeV":
        meaning += ". F above B is a pair: it takes as long as both, and sends both results at its end"
    if v > 1:
        meaning += ". A mark ′ stands for a rank's second stage"
    frames[0] |= {
        "title": f"Before: micro-batches 0 to {micro_batches - 1}, and {ranks * v} stages on {ranks} ranks",
        "note": f"{meaning}.",
    }
    held = [f"{steps / v:.3g}" for steps in timeline.held]
    frames[-1] |= {
        "title": f"{schedule}, {micro_batches} micro-batches: idle {timeline.bubble:.0%}; "
                 f"rank 0 held at most {held[0]}",
        "note": f"{messages(orders)} messages; by rank, at most {', '.join(held)} micro-batches were held.",
    }
    return {
        "size": [WIDE, 404],
        "axis": lanes.axis,
        "flows": True,
        "pace": 400,
        "frames": frames,
        "off": off,
    }


def _lanes(ranks, end, kinds):
    names = [str(rank) for rank in range(ranks)]
    high = min(28, 140 / ranks)
    unit = "logical time: " + ", ".join(f"{kind} {COST[kind]}" for kind in COST if kind in kinds)
    return Lanes(names, end, x=18, y=222, w=418, row=high, unit=unit, gap=2)


def _frames(timeline, per_rank, lanes, kinds):
    tasks = tasks_of(timeline)
    held = held_of(tasks)
    row = Row(len(timeline.starts), per_rank, 1 + max(one.place for one in held))
    spans = list(_spans(tasks, lanes))
    fixed = [*lanes.shapes(), *_fixed(row), *_legend(kinds)]
    # Many tasks in many frames would make a control slow.
    apart = max(1, len(tasks) // 40)
    frames = []
    for now in range(0, lanes.end + apart + 1, apart):
        busy = {}
        for task in tasks:
            if task.begin < now <= task.end:
                busy.setdefault(task.rank, []).append(task)
        kept = [one for one in held if one.begin < now <= one.end]
        # If a rank has sent several in so long a time, only the last one is shown.
        sent = {(task.rank, task.kind): task for task in tasks if now - apart < task.end <= now}
        shapes = [
            *fixed,
            _waiting(lanes, now),
            *lanes.bars(spans, now),
            *_ranks(busy, row),
            *_piles(kept, row),
            *_messages(sent, row),
        ]
        activations = sum(one.rank == 0 for one in kept) / row.per_rank
        frames.append({
            "title": f"Time {now} of {lanes.end}",
            "note": f"Ranks that compute: {len(busy)}. Rank 0 holds {activations:.3g}.",
            "shapes": shapes,
        })
    return frames


def tasks_of(timeline):
    """All that is done on a `Timeline`, rank by rank, in the rank's order."""
    ranks = len(timeline.starts)
    homes = ranks_of_stages(timeline.starts)
    tasks = []
    for rank, steps in enumerate(timeline.starts):
        for step, begin in steps.items():
            for part in parts(step):
                kind, micro_batch, *_ = part
                name = str(micro_batch) + "′" * (stage_of(rank, part) // ranks)
                to = receiver(rank, part, homes)
                tasks.append(Task(rank, kind, micro_batch, name, begin, begin + cost(step), to))
    return tasks


def held_of(tasks):
    """What the ranks hold because of these tasks."""
    held = []
    places = {}  # what waits for its backward: (rank, name): place
    begins = {}
    for task in tasks:
        key = task.rank, task.name
        if task.kind == "F":
            place = 0
            while place in places.values():
                place += 1
            places[key] = place
            begins[key] = task.begin
        elif task.kind != "I":  # what its W needs stays
            held.append(Held(*key, places.pop(key), begins[key], task.end))
    return held


def _fixed(row):
    """Names, and what connects the ranks."""
    yield words("held", WIDE / 2, 10, "above each rank: the activations that it holds", "middle")
    for rank in range(row.ranks):
        yield words(f"name {rank}", row.middle(rank), TOP + HIGH + 13, f"rank {rank}", "middle", size=14)
    wire = TOP + HIGH / 2
    ends = [row.middle(0), wire], [row.middle(row.ranks - 1), wire]
    yield path("wire", ends, width=2, opacity=0.5, layer=-1)


def _legend(kinds):
    """What the colours of these kinds mean."""
    left = 4
    for kind, meaning in MEANINGS.items():
        if kind in kinds:
            yield from key(f"{kind} {meaning}", left, LEGEND, **LOOKS[kind])
            left += 50 + 7.5 * len(meaning)


def _spans(tasks, lanes):
    """For the lanes: all tasks."""
    for task in tasks:
        look = {name: value for name, value in LOOKS[task.kind].items() if name != "line"}
        wide, high = lanes.at(task.end) - lanes.at(task.begin), lanes.row * task.share
        if wide > 8.2 * len(task.name) + 4.4 and high > 13:
            look["text"] = task.name
        # A pair's forward lies above its backward. A gap tells a bar from the next one.
        row = task.rank - 0.5 if task.share < 1 and task.kind == "F" else task.rank
        yield f"{task.rank} {task.kind}{task.name}", row, task.begin, task.end - 0.08, look | {"share": task.share}


def _waiting(lanes, now):
    """What lies behind all bars: it is seen where a rank does nothing."""
    wide = lanes.at(min(now, lanes.end)) - lanes.x
    return box("wait", lanes.x, lanes.y, wide, lanes.bottom - lanes.y, lane=True, **doing("waiting", layer=-1))


def _ranks(busy, row):
    """The ranks as boxes, and in each what the rank does."""
    for rank in range(row.ranks):
        left = row.middle(rank) - row.wide / 2
        if rank not in busy:
            yield box(f"rank {rank}", left, TOP, row.wide, HIGH, **doing("waiting"))
        top = TOP
        for task in busy.get(rank, ()):
            name = f"rank {rank}" if top == TOP else f"rank {rank} too"
            yield box(name, left, top, row.wide, HIGH * task.share, text=task.kind + task.name, **LOOKS[task.kind])
            top += HIGH * task.share


def _piles(kept, row):
    """The activations that the ranks hold."""
    for one in kept:
        left, top = row.place(one.rank, one.place)
        look = {"fill": HELD["activations"]}
        if row.cell > 20:
            look |= {"text": one.name, "size": 13}
        yield box(f"place {one.rank} {one.place}", left, top, row.cell - min(2, row.cell / 4), RISE - 2, **look)


def _messages(sent, row):
    """What glides to another rank: forwards in the upper half of the boxes, backwards in the lower one."""
    for (rank, kind), task in sent.items():
        if task.to is None:
            continue
        top = TOP if kind == "F" else TOP + 20
        left = row.middle(task.to) - MESSAGE / 2
        look = {
            "fill": LOOKS[kind]["fill"],
            "text": str(task.micro_batch),
            "from": {"x": row.middle(rank) - MESSAGE / 2},
            "passes": True,
        }
        yield box(f"message {rank} {kind}", left, top, MESSAGE, 18, **look)


def schedule_explorer():
    """Pipeline explorer: micro-batches go forward and, darker, backward through the ranks; above each rank is the pile
    of activations that it holds, and lanes of time show who computes and who waits. Interleaved gives each rank v
    short stages, and rounds the micro-batches up to a multiple of the ranks. ZB-1P is 1F1B with halved
    backwards. ZB-V and DualPipeV halve them, too, and give each rank two short stages, laid out like a V. DualPipeV
    takes at least twice as many micro-batches as ranks; a pair of a forward and a backward is one step."""
    controls = {
        "schedule": buttons("schedule", "GPipe", SCHEDULES),
        "ranks": slider("ranks", 4, range(1, 9)),
        "micro_batches": slider("micro-batches", 8, range(1, 33)),
        "v": slider("v (interleaved)", 2, (2, 3, 4)),
    }
    presets = {
        "2 micro-batches": preset("Press Play. How many ranks work at the same time?", micro_batches=2),
        "12 micro-batches": preset("Press Play. How high does the pile of rank 0 grow, and when is it highest?",
                                   micro_batches=12),
        # With fewer micro-batches, so that their numbers can be read in the lanes.
        "1F1B": preset("Press Play. When does rank 0 go backward for the first time?", schedule="1F1B",
                       micro_batches=5),
        "zero bubble": preset("Press Play. Does a rank wait between its first forward and its last backward? And how "
                              "high does the pile of rank 3 grow?", schedule="ZB-V", micro_batches=7),
    }
    return Stage("schedule_explorer", schedule_explorer.__doc__, scene, controls,
                 look="Dotted is waiting. Where is it: at the beginning, in the middle, at the end?",
                 presets=presets, still=15)
