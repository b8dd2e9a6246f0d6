"""The pipeline explorer: who does which micro-batch when, and what a rank holds, by three schedules."""

from itertools import pairwise
from typing import NamedTuple

from helpers.figures import HELD
from helpers.widgets.shapes import Lanes, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from lessons.model_parallel.pictures import SHADES
from lessons.model_parallel.schedules import cost, gpipe, interleaved, messages, one_f_one_b, simulate

SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "Interleaved": interleaved}
LOOKS = {"F": {"fill": SHADES["F"]}, "B": {"fill": SHADES["B"], "line": "#8fa2ff"}}  #: the edge is for a dark page
WIDE = 560
DETAILED = 8  #: so many ranks are shown as boxes at most; of more, only the lanes of time
TOP, HIGH = 138, 38  #: of the ranks' boxes; above them are the piles of what they hold


class Task(NamedTuple):
    """A forward or a backward of a micro-batch in a stage."""

    rank: int
    kind: str  # "F" or "B"
    name: str  # the micro-batch's number, with a mark ′ for the rank's second stage, two for the third
    begin: int
    end: int
    to: int  # the rank that gets its result, or None


class Held(NamedTuple):
    """Activations that a rank holds, from the begin of a forward to the end of its backward."""

    rank: int
    name: str
    place: int  # in the rank's pile: the lowest one that is free
    begin: int
    end: int


def tasks_of(timeline, per_rank):
    """All that is done, and all that is held, on a `Timeline`."""
    ranks = len(timeline.starts)
    tasks, activations = [], []
    for rank, steps in enumerate(timeline.starts):
        held = {}
        for step, begin in steps.items():
            kind, micro_batch, stage = (*step, rank)[:3]
            name, end = f"{micro_batch}{'′' * (stage // ranks)}", begin + cost(step)
            to = stage + 1 if kind == "F" else stage - 1
            tasks.append(Task(rank, kind, name, begin, end, to % ranks if 0 <= to < ranks * per_rank else None))
            if kind == "F":
                taken = {place for place, _ in held.values()}
                held[name] = min(set(range(len(held) + 1)) - taken), begin
            else:
                activations.append(Held(rank, name, *held.pop(name), end))
    return tasks, activations


def scene(schedule, ranks, micro_batches, v):
    """A frame for each unit of time, or for several if there are many; and one in which all is done."""
    stages = ()
    if schedule == "Interleaved":
        stages, micro_batches = (v,), -(-micro_batches // ranks) * ranks
    orders = [SCHEDULES[schedule](rank, ranks, micro_batches, *stages) for rank in range(ranks)]
    timeline = simulate(orders)
    pipeline = Pipeline(timeline, *stages)
    lanes = _lanes(ranks, timeline.end)
    spans = list(_spans(pipeline.tasks, lanes))
    fixed = [*lanes.shapes(), *pipeline.fixed()]
    apart = -(-timeline.end // min(36, max(9, 9_000 // len(pipeline.tasks))))
    moments = [*range(0, timeline.end, apart), timeline.end, timeline.end + apart]
    frames = []
    for before, now in pairwise([-apart, *moments]):
        shapes = [*fixed, *lanes.bars(spans, now), *pipeline.shapes(before, now)]
        frames.append({"title": f"Time {now} of {timeline.end}", "note": pipeline.said(now), "shapes": shapes})
    frames[0] |= _before(micro_batches, ranks, *stages)
    frames[-1] |= _after(schedule, micro_batches, timeline, messages(orders), pipeline.per_rank)
    return {"size": [WIDE, 404], "axis": lanes.axis, "flows": True, "pace": 400, "frames": frames,
            "off": [] if stages else ["v"]}


def _before(micro_batches, ranks, per_rank=1):
    marks = " A mark ′ stands for a rank's second stage." if per_rank > 1 else ""
    return {"title": f"Before: micro-batches 0 to {micro_batches - 1}, and {ranks * per_rank} stages on {ranks} ranks",
            "note": f"F is the forward of a micro-batch in a stage, B its backward, which takes twice as long.{marks}"}


def _after(schedule, micro_batches, timeline, sent, per_rank):
    held = [f"{steps / per_rank:.3g}" for steps in timeline.held]
    return {"title": f"{schedule}: idle {timeline.bubble:.0%}; rank 0 held at most {held[0]} micro-batches",
            "note": f"{micro_batches} micro-batches, {sent} messages; by rank, at most {', '.join(held)} were held."}


def _lanes(ranks, end):
    y, high = (222, 140) if ranks <= DETAILED else (20, 360)
    return Lanes([f"rank {rank}" for rank in range(ranks)], end, x=66, y=y, w=482, row=min(28, high / ranks),
                 unit="logical time: forward 1, backward 2")


def _spans(tasks, lanes):
    """For the lanes: all tasks, with waiting behind them."""
    ranks = len(lanes.names)
    for rank in range(ranks):
        yield f"wait {rank}", rank, 0, lanes.end, doing("waiting", layer=-1)
    unit = lanes.w / lanes.end
    longest = max(len(task.name) for task in tasks)
    for rank, kind, name, begin, end, _ in _joined(tasks) if unit < 3 else tasks:
        has_room = 8 * longest + 5 < unit * (end - begin)
        named = {"text": name} if has_room else {"size": None, "tip": kind + name}
        # A gap tells a bar from the next one.
        yield f"{rank} {begin}", rank, begin, end - min(0.1, 1.2 / unit), {**LOOKS[kind], **named}


def _joined(tasks):
    """For tasks too short to be told apart: what a rank does without a pause is one; a backward, if one is in it."""
    joined = tasks[:1]
    for task in tasks[1:]:
        last = joined[-1]
        has_a_pause = (last.rank, last.end) != (task.rank, task.begin)
        if has_a_pause or (last.kind, task.kind) == ("F", "B"):
            joined.append(task)
        else:
            joined[-1] = last._replace(end=task.end, name="…")
    return joined


class Pipeline:
    """The ranks as boxes in a row: what each does, the pile of what it holds, and what it sends."""

    def __init__(self, timeline, per_rank=1):
        self.tasks, self.held = tasks_of(timeline, per_rank)
        self.ranks, self.per_rank = len(timeline.starts), per_rank
        self.column = WIDE / self.ranks
        self.wide = min(84, self.column - 26)
        # Activations of a stage that is one of v have a v-th of the size.
        self.cell, self.rise = (24 / per_rank, 18) if self.ranks <= 4 else (12 / per_rank, 13)
        self.across = min(6 * per_rank, int((self.column - 8) / self.cell))

    def left(self, rank):
        """The left edge of a rank's box."""
        return self.column * (rank + 0.5) - self.wide / 2

    def fixed(self):
        """Names, and what connects the ranks."""
        if self.ranks > DETAILED:
            return
        yield words("held", WIDE / 2, 10, "above each rank: the activations that it holds", "middle", size=14)
        for rank in range(self.ranks):
            yield words(f"name {rank}", self.column * (rank + 0.5), TOP + HIGH + 13, f"rank {rank}", "middle", size=14)
        for rank in range(1, self.ranks):
            ends = [[self.left(rank - 1) + self.wide, TOP + HIGH / 2], [self.left(rank), TOP + HIGH / 2]]
            yield path(f"wire {rank}", ends, opacity=0.5, width=2, layer=-1)

    def shapes(self, before, now):
        """What is seen in the frame from the time `before` to `now`."""
        if self.ranks > DETAILED:
            return
        yield from self._boxes(now)
        yield from self._piles(now)
        sent = {(task.rank, task.kind): task for task in self.tasks if before < task.end <= now}
        for task in sent.values():
            if task.to is not None:
                yield self._message(task)

    def busy(self, now):
        """By rank: the task that it does just before `now`."""
        return {task.rank: task for task in self.tasks if task.begin < now <= task.end}

    def _boxes(self, now):
        busy = self.busy(now)
        for rank in range(self.ranks):
            look = doing("waiting")
            if rank in busy:
                look = {**LOOKS[busy[rank].kind], "text": busy[rank].kind + busy[rank].name}
            yield box(f"rank {rank}", self.left(rank), TOP, self.wide, HIGH, **look)

    def _piles(self, now):
        """What the ranks hold; and dashed, where they have held something before."""
        last = {(one.rank, one.place): one for one in self.held if one.begin < now}
        for (rank, place), one in last.items():
            look = {"dash": True}
            if now <= one.end:
                look = {"fill": HELD["activations"], "from": {"y": TOP}}
                look |= {"text": one.name, "size": 13} if self.cell > 20 else {"tip": f"of F{one.name}"}
            yield box(f"place {rank} {place}", *self._place(rank, place), round=1, **look)

    def _place(self, rank, place):
        row, column = divmod(place, self.across)
        left = self.column * (rank + 0.5) + self.cell * (column - self.across / 2)
        return left, TOP - 6 - self.rise * (row + 1), self.cell - 2, self.rise - 2

    def _message(self, task):
        """A micro-batch on its way: forward in the upper half, backward in the lower one."""
        begin, end, y = self.left(task.rank) - 11, self.left(task.to) + self.wide - 11, TOP + HIGH - 18
        if task.kind == "F":
            begin, end, y = self.left(task.rank) + self.wide - 11, self.left(task.to) - 11, TOP
        return box(f"message {task.rank} {task.kind}", end, y, 22, 18, text=task.name.rstrip("′"), layer=1, passes=True,
                   **LOOKS[task.kind], **{"from": {"x": begin}})

    def said(self, now):
        """The note of a frame."""
        busy = sorted(self.busy(now))
        done = sum(min(task.end, now) - task.begin for task in self.tasks if task.begin < now)
        held = sum(one.rank == 0 and one.begin < now <= one.end for one in self.held) / self.per_rank
        idle = 1 - done / (self.ranks * max(1, now))
        return (f"Computing: rank{'s' * (len(busy) > 1)} {', '.join(map(str, busy))}. Rank 0 holds {held:.3g}. "
                f"Idle so far: {idle:.0%}.")


def schedule_explorer():
    """Pipeline explorer: micro-batches go forward and, darker, backward through the ranks; above each rank is the pile
    of activations that it holds, and lanes of time show who computes and who waits. Interleaved gives each rank v
    short stages, and rounds the micro-batches up to a multiple of the ranks."""
    controls = {
        "schedule": buttons("schedule", "GPipe", SCHEDULES),
        "ranks": slider("ranks", 4, range(1, 17)),
        "micro_batches": slider("micro-batches", 8, range(1, 33)),
        "v": slider("v (interleaved)", 2, (2, 3, 4)),
    }
    return Stage("schedule_explorer", schedule_explorer.__doc__, scene, controls,
                 look="Dotted is waiting. Where is it: at the beginning, in the middle, at the end?",
                 presets={
                     "2 micro-batches": preset("Press Play. How many ranks work at the same time?", micro_batches=2),
                     "12 micro-batches": preset("Press Play. How high does the pile of rank 0 grow, and when is it "
                                                "highest?", micro_batches=12),
                     "1F1B": preset("Press Play. When does rank 0 go backward for the first time?", schedule="1F1B"),
                     "interleaved": preset("Press Play. How long does rank 3 wait at first?", schedule="Interleaved"),
                 }, still=15)
