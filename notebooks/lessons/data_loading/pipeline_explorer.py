"""The pipeline simulator: workers load batches, batches lie ready, the device computes. Who waits for whom?

A batch sinks through its worker while it is loaded, moves to its place, and from there, in its turn, into the device.
Below grow the lanes of time. `simulate` models torch's DataLoader, and `scene` shows what it says as it happens.
"""

from collections import Counter
from itertools import accumulate, pairwise
from typing import NamedTuple

from helpers.widgets.shapes import Lanes, box, circle, doing, words
from helpers.widgets.stage import Stage, preset, slider

#: Each of these batches takes longer to load than the others, where there are stalls.
EVERY = 7
#: Loading is the computing of the CPU: a light shade of its colour, also for the batches that lie ready.
LOADED = "#7088fd"
BATCHES = 16
WORKERS = range(9)
PREFETCH = range(1, 9)
MILLISECONDS = (1, 2, 5, 10, 14, 20, 25, 30, 40, 50, 60, 80, 100)

SIZE = (560, 436)
LEFT, WIDE = 90, 460  #: of all that lies beside the names
WORKER, READY, DEVICE = 20, 88, 116  #: where the workers are, the batches that lie ready, and the device
LANES = 156
CHIP = 20  #: the height of a batch
WORKER_HIGH = 46
SINKS = WORKER_HIGH - CHIP - 4  #: how far a batch sinks through its worker
CELL = WIDE / BATCHES
KNOB = 7  #: its radius
FRAMES = 28
GREY, GREEN = "#888888", "#009e73"


class Timeline(NamedTuple):
    """What happened to each batch, or would happen: times in milliseconds since the epoch was asked for."""

    num_workers: int
    loads: list  # by batch: (worker, begin, end); the worker is 0 where the main process loads
    computes: list  # by batch: (begin, end) of the training step, during which the device is busy

    @classmethod
    def measured(cls, row):
        """The timeline in a row that `input_pipeline.py` reported."""
        return cls(row["workers"], row["loads"], row["computes"])

    @property
    def total(self):
        """Milliseconds until the last step has ended."""
        return self.computes[-1][1]

    @property
    def busy(self):
        """The share of that time, 0 to 1, in which the device computed."""
        return sum(end - begin for begin, end in self.computes) / self.total

    @property
    def waits(self):
        """By batch: (begin, end) of the device's wait for it."""
        begins, ends = zip(*self.computes, strict=True)
        return list(zip([0, *ends[:-1]], begins, strict=True))

    @property
    def ready(self):
        """When the number of loaded batches that wait for the device changes, and what it changes to."""
        if not self.num_workers:
            return [0], [0]  # each batch is handed over as soon as it is loaded
        changes = Counter(end for _, _, end in self.loads)
        changes.subtract(begin for begin, _ in self.computes)
        at = sorted(changes)
        return [0, *at], [0, *accumulate(changes[moment] for moment in at)]


def fastest(rows):
    """{(num_workers, prefetch_factor): the timeline of its fastest epoch}, of what `input_pipeline.py` reported."""
    found = {}
    for row in sorted(rows, key=lambda row: Timeline.measured(row).total):
        found.setdefault((row["workers"], row["prefetch"] or 2), Timeline.measured(row))
    return dict(sorted(found.items()))


def simulate(num_workers, prefetch_factor=2, load_ms=30.0, compute_ms=20.0, batches=24, start_ms=0.0):
    """The timeline of one epoch, as DataLoader would run it.

    The main process starts the workers one after another, `start_ms` each. Then it asks for
    `num_workers * prefetch_factor` batches, which it gives out to the workers in turn. Each worker loads its
    batches one by one, in `load_ms`, which may be a list, by batch. The main process takes the batches in
    order, asks for one more whenever it takes one, and computes. Without workers it loads each batch itself,
    just before it computes. The model assumes that a worker has a core, or waits for a disk, and that handing
    a batch over costs nothing.
    """
    durations = load_ms if isinstance(load_ms, list) else [load_ms] * batches
    started = num_workers * start_ms
    loads, computes, now = [], [], started
    free = [started] * num_workers  # when each worker has done what it was given so far
    for batch, duration in enumerate(durations):
        if num_workers == 0:
            worker, begin = 0, now
        else:
            worker, in_advance = batch % num_workers, num_workers * prefetch_factor
            asked = started if batch < in_advance else computes[batch - in_advance][0]
            begin = max(free[worker], asked)
            free[worker] = begin + duration
        loads.append((worker, begin, begin + duration))
        taken = max(now, begin + duration)  # after the step before, and once it is there
        now = taken + compute_ms
        computes.append((taken, now))
    return Timeline(num_workers, loads, computes)


def stalling(load_ms, batches, times=5):
    """Loading times in which every EVERY-th batch takes `times` times as long as the others."""
    return [times * load_ms if batch % EVERY == EVERY - 1 else load_ms for batch in range(batches)]


def scene(num_workers, prefetch_factor, load_ms, stall, compute_ms):
    """Frames at equal distances in time, from when the epoch is asked for until its last step has ended."""
    loads = stalling(load_ms, BATCHES, stall)
    timeline = simulate(num_workers, prefetch_factor, loads, compute_ms)
    looks = [{"fill": LOADED, "hatch": "xx" if load > load_ms else None} for load in loads]
    names = [f"worker {worker}" for worker in range(num_workers)] or ["main"]
    names += ["ready", "device"]
    lanes = Lanes(names, timeline.total, LEFT, LANES, WIDE, min(40, 238 / len(names)))
    spans, fixed = list(_spans(timeline, looks)), list(_names(num_workers))
    frames = []
    for before, now in lanes.moments(FRAMES):
        shapes = [*fixed, *lanes.shapes(now), *lanes.bars(spans, now), *_workers(timeline, now)]
        shapes += _asked(timeline, prefetch_factor, now)
        shapes.append(_device(timeline, now))
        for batch, look in enumerate(looks):
            shapes += _batch(batch, timeline, look, before, now)
        title, note = _title(timeline, now), _note(timeline, prefetch_factor, now)
        frames.append({"title": title, "note": note, "shapes": shapes})
    # The last frame compares with the most that one may ask for: there, readers try values.
    most = simulate(num_workers, PREFETCH[-1], loads, compute_ms)
    if num_workers and timeline.total <= most.total:
        frames[-1]["note"] += " A larger prefetch_factor changes nothing here."
    return {
        "size": SIZE,
        "axis": lanes.axis,
        "flows": True,
        "pace": 400,
        "frames": frames,
        "off": [] if num_workers else ["prefetch_factor"],
    }


def _names(num_workers):
    """What the rows are called, and two boxes that take a worker away, or add one."""
    for name, y in {"workers": 9, "batches": READY + 11, "the device": DEVICE + 12}.items():
        yield words(name, LEFT - 6, y, name, "end", size=14)
    for sign, x, wanted in ("−", 26, num_workers - 1), ("+", 56, num_workers + 1):
        if wanted in WORKERS:
            yield box(
                sign,
                x, 30, 26, 26,
                text=sign,
                bold=True,
                click={"num_workers": wanted},
                tip=f"num_workers={wanted}",
            )


def _spans(timeline, looks):
    """What happens when, as `Lanes.bars` takes it. The more batches lie ready, the higher is that row's bar."""
    # Below the workers, or the main process.
    ready = max(1, timeline.num_workers)
    device = ready + 1
    for batch, (worker, begin, end) in enumerate(timeline.loads):
        look = {"text": f"{batch}", **looks[batch]}
        yield f"load {batch}", worker, begin, end, look
    at, counts = timeline.ready
    for number, (begin, end) in enumerate(pairwise(at)):
        if counts[number]:
            look = {
                "share": counts[number] / max(counts),
                "fill": LOADED,
                "round": 0,
            }
            yield f"ready {number}", ready, begin, end, look
    for batch, (begin, end) in enumerate(timeline.waits):
        if begin < end:
            yield f"wait {batch}", device, begin, end, doing("waiting")
    for batch, (begin, end) in enumerate(timeline.computes):
        yield f"step {batch}", device, begin, end, doing("compute")


def _middle(worker, timeline):
    """The x of a worker's middle."""
    return LEFT + WIDE * (worker + 0.5) / max(1, timeline.num_workers)


def _workers(timeline, now):
    """The workers, or the main process, which is never idle: it loads, or it computes."""
    loading = {worker for worker, begin, end in timeline.loads if begin <= now < end}
    number = max(1, timeline.num_workers)
    wide = min(120, WIDE / number - 6)
    for worker in range(number):
        x = _middle(worker, timeline)
        name = f"{worker}" if timeline.num_workers else "main process"
        yield words(
            f"name {worker}",
            x, 9,
            name,
            "middle",
            size=14,
            bold=True,
        )
        look = {"line": GREY}
        if timeline.num_workers and worker not in loading:
            look = doing("waiting", text="idle")
        yield box(
            f"box {worker}",
            x - wide / 2, WORKER, wide, WORKER_HIGH,
            size=13,
            **look,
        )


def _device(timeline, now):
    is_busy = any(begin <= now < end for begin, end in timeline.computes)
    look = doing("compute" if is_busy else "waiting")
    if now == timeline.total:
        look = {"line": GREY, "dash": True}
    return box("device", LEFT, DEVICE, WIDE, CHIP + 4, **look)


def _asked(timeline, prefetch_factor, now):
    """A frame around the batches that are asked for and not taken yet, with a knob at its end."""
    workers = timeline.num_workers
    taken = sum(begin <= now for begin, _ in timeline.computes)
    if not workers or taken == BATCHES:
        return
    ends = [_place(min(BATCHES, taken + workers * factor)) for factor in PREFETCH]
    begin = _place(taken)
    end = ends[PREFETCH.index(prefetch_factor)]
    yield box(
        "asked",
        begin - 2, READY - 3, end - begin + 3, CHIP + 8,
        line=GREEN,
        width=2.5,
        layer=-1,
    )
    yield circle(
        "knob",
        end, READY - 3, KNOB,
        fill=GREEN,
        layer=1,
        drag=("prefetch_factor", [[x - KNOB, READY - 3 - KNOB] for x in ends]),
        tip=f"prefetch_factor {prefetch_factor}",
    )


def _batch(batch, timeline, look, before, now):
    """A batch from when it is loaded until its step is over; and its place, until it is taken."""
    worker, begin, loaded = timeline.loads[batch]
    taken, done = timeline.computes[batch]
    if now < taken:
        yield box(
            f"place {batch}",
            _place(batch), READY, CELL - 1, CHIP + 2,
            line=GREY,
            layer=-1,
            size=13,
            text=f"{batch}" if now < loaded else None,
        )
    # A step may be shorter than a frame: a batch is still seen to reach the device when its step is over.
    if begin <= now and before < done:
        x, y = _where(batch, timeline, now)
        yield box(
            f"batch {batch}",
            x, y, CELL - 1, CHIP,
            size=13,
            text=f"{batch}",
            passes=done <= now,
            **look,
            **{"from": {"x": _middle(worker, timeline) - CELL / 2, "y": WORKER + 2}},
        )


def _place(batch):
    """The x of a batch's place."""
    return LEFT + CELL * batch


def _where(batch, timeline, now):
    """Where a batch is: in its worker, ready in its place, or in the device."""
    worker, begin, loaded = timeline.loads[batch]
    taken, _ = timeline.computes[batch]
    if now < loaded:
        # It sinks through its worker, and is at the bottom once it is loaded.
        share = (now - begin) / (loaded - begin)
        return _middle(worker, timeline) - CELL / 2, WORKER + 2 + share * SINKS
    if now < taken:
        return _place(batch), READY + 1
    return _place(batch), DEVICE + 2


def _title(timeline, now):
    if now == timeline.total:
        return f"The epoch has taken {now:.0f} ms"
    for batch, (begin, end) in enumerate(timeline.computes):
        if now < begin:
            return f"The device waits for batch {batch}"
        if now < end:
            return f"The device computes batch {batch}"


def _note(timeline, prefetch_factor, now):
    workers = timeline.num_workers
    if now == 0 and workers:
        return (
            f"{workers} × prefetch_factor {prefetch_factor}: {workers * prefetch_factor} batches are asked for "
            "in advance (the green frame). They are handed out in turn, and taken in order."
        )
    if now == 0:
        return "The main process loads each batch itself; then the device computes."
    at, counts = timeline.ready
    if now == timeline.total:
        computed = timeline.busy * now
        return (
            f"The device has computed for {computed:.0f} ms, and waited for {now - computed:.0f} ms: "
            f"it was busy {timeline.busy:.0%} of the time. At most {max(counts)} lay ready at once."
        )
    changes = sum(moment <= now for moment in at)
    return f"After {now:.0f} ms. Ready: {counts[changes - 1]}."


def pipeline_explorer(num_workers=3, prefetch_factor=1):
    """Pipeline simulator: workers load batches, which lie ready until the device takes them, in order. Set the
    workers, the batches in advance and the times, and see who waits for whom."""
    controls = {
        "num_workers": slider("num_workers", num_workers, WORKERS),
        "prefetch_factor": slider("prefetch_factor", prefetch_factor, PREFETCH),
        "load_ms": slider("load a batch, ms", 20, MILLISECONDS),
        "stall": slider(f"every {EVERY}th takes × as long", 8, range(1, 11)),
        "compute_ms": slider("compute, ms", 14, MILLISECONDS),
    }
    presets = {
        "no workers": preset("Press Play. Do loading and computing overlap?", num_workers=0),
        "little in advance": preset("Press Play. What do the other workers do while one loads a slow batch?",
                                    prefetch_factor=1),
        "more in advance": preset("Look at the row of ready batches. What do they bridge?", frame=-1,
                                  prefetch_factor=PREFETCH[-1]),
        "slow loading": preset("Press Play: the device waits. Does it help to drag the green knob to the right?",
                               load_ms=60, stall=1),
    }
    return Stage("pipeline_explorer", pipeline_explorer.__doc__, scene, controls,
                 "Press Play. Where the device is grey, it waits. For which batch, and who loads that?", presets,
                 still=13)
