"""Buckets of gradients that leave while backward still computes: two ranks, and a network between them; by a model.

Layers turn blue from the last to the first, and their gradients fall into buckets. The full buckets of both ranks meet
on the network and come back averaged. Below grow the lanes of time; a chart compares all bucket sizes.
"""

from functools import partial
from typing import NamedTuple

from helpers.figures import ACTIVITIES, HELD
from helpers.widgets.shapes import PALE, Chart, Lanes, box, circle, doing, path, ticks, words
from helpers.widgets.stage import Stage, preset, slider

ALL = 1000  #: a bucket of so many MB holds everything
#: What the explorer offers: bucket sizes in MB beside ALL; milliseconds; MB per second.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50)
LATENCIES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
SPEEDS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000)

SIZE = (560, 472)
LEFT, WIDE = 90, 460  #: of all that lies beside the names
NETWORK = 110  #: in the middle between both ranks
LAYERS, BUCKETS, MEETS = 22, 50, 87  #: of rank 0: its layers, its buckets, and one that meets that of rank 1
HIGH = 22  #: of a layer, and of a bucket
GAP = 1.5
LANES, LEGEND, CHART = 216, 319, 358
ROWS = {33: "rank 0", 61: "buckets", NETWORK: "network", 159: "buckets", 187: "rank 1"}
RING = 9  #: the radius of the ring around the chosen size
FRAMES = 26
GREY, GREEN, PURPLE = "#888888", "#009e73", "#9a5fb5"


class Layer(NamedTuple):
    """When backward computes a layer."""

    number: int
    begin: float
    end: float


class Bucket(NamedTuple):
    """Whose gradients share a bucket; when the last one is there, and when its all-reduce begins, and ends."""

    layers: list
    ready: float
    begin: float
    end: float


class Step(NamedTuple):
    """One backward pass and its all-reduces; times in milliseconds from the beginning of backward."""

    backward: list  # of Layer, the last one first
    buckets: list

    @property
    def computed(self):
        """Milliseconds until backward ends."""
        return self.backward[-1].end

    @property
    def total(self):
        """Milliseconds until both backward and the last all-reduce have ended."""
        return max(self.computed, self.buckets[-1].end)

    @property
    def communicated(self):
        """Milliseconds of communication in all."""
        return sum(bucket.end - bucket.begin for bucket in self.buckets)

    @property
    def overlap(self):
        """The share of the communication, 0 to 1, that runs while backward computes."""
        hidden = 0
        for bucket in self.buckets:
            hidden += max(0, min(bucket.end, self.computed) - bucket.begin)
        return hidden / self.communicated


def fill_buckets(megabytes, bucket_mb):
    """[[place, …], …]: which gradients share a bucket, of these `megabytes` in the order of their arrival.

    As in DDP, a bucket is closed by the gradient with which it reaches its size. It may be larger than that.
    """
    buckets, size = [[]], 0.0
    for place, megabyte in enumerate(megabytes):
        if size >= bucket_mb:
            buckets.append([])
            size = 0.0
        buckets[-1].append(place)
        size += megabyte
    return buckets


def simulate(bucket_mb, backward_ms=5.0, layer_mb=4.0, latency_ms=0.2, mb_per_s=1000.0, layers=20):
    """One step's backward with DDP's buckets.

    The model: equal layers run backward from the last to the first, `backward_ms` each, and the `layer_mb` of
    a layer's gradient are ready when it is done. Gradients fill buckets in that order. A bucket's all-reduce
    begins when the bucket is full and the one before it is done; it takes latency plus bytes over bandwidth,
    and costs the computing nothing. MB are 2**20 bytes, as DDP's `bucket_cap_mb` counts.
    """
    backward = []
    for place in range(layers):
        begin = place * backward_ms
        backward.append(Layer(layers - 1 - place, begin, begin + backward_ms))
    buckets, free = [], 0.0
    for places in fill_buckets([layer_mb] * layers, bucket_mb):
        members = [backward[place] for place in places]
        ready = members[-1].end
        begin = max(ready, free)
        free = begin + latency_ms + 1000 * layer_mb * len(members) / mb_per_s
        buckets.append(Bucket(members, ready, begin, free))
    return Step(backward, buckets)


def scene(bucket_mb, sizes, measured_ms, **model):
    """Frames at equal distances in time, from the beginning of backward to the end of the last all-reduce.

    sizes, measured_ms: For the chart; measured are steps, {bucket_mb: milliseconds}. All else is for `simulate`.
    """
    step = simulate(bucket_mb, **model)
    totals = {size: simulate(size, **model).total for size in sizes}
    lanes = Lanes(["backward", "waiting", "all-reduce"], step.total, LEFT, LANES, WIDE, 24)
    spans = list(_spans(step, model["latency_ms"]))
    fixed = [*_names(), *_chart(totals, measured_ms, bucket_mb, step.computed)]
    frames = []
    for before, now in lanes.moments(FRAMES):
        shapes = [
            *fixed,
            *lanes.shapes(now),
            *lanes.bars(spans, now),
        ]
        for shape in _rank(step, before, now):
            shapes += [shape, _mirrored(shape)]
        frames.append({
            "title": _title(step, now),
            "note": _note(step, now),
            "shapes": shapes,
        })
    return {
        "size": SIZE,
        "axis": lanes.axis,
        "flows": True,
        "pace": 320,
        "frames": frames,
    }


def _names():
    for y, name in ROWS.items():
        yield words(f"row {y}", LEFT - 6, y, name, "end", size=14)
    yield words("backwards", LEFT + WIDE, 10, "← backward: from the last layer to the first", "end", size=14)
    yield words("legend", LEFT, LEGEND, "light red: latency, dark red: bytes, ✔: averaged", size=14)
    yield path("network", [[LEFT, NETWORK], [LEFT + WIDE, NETWORK]], line=GREY, width=2, layer=-1)


def _spans(step, latency_ms):
    """What happens when, as `Lanes.bars` takes it: the bars of each bucket."""
    latency = {"fill": "#f1c0ba", "line": ACTIVITIES["communication"]}
    for number, (layers, ready, begin, end) in enumerate(step.buckets):
        name = f"{number}"
        sends = begin + latency_ms
        yield f"backward {name}", 0, layers[0].begin, ready, doing("compute", text=name)
        yield f"waiting {name}", 1, ready, begin, doing("waiting")
        yield f"latency {name}", 2, begin, sends, latency
        yield f"bytes {name}", 2, sends, end, doing("communication", text=name)


def _rank(step, before, now):
    """All of rank 0: its layers are blue once backward has come to them."""
    for layer in step.backward:
        look = doing("compute") if layer.begin < now else {"fill": PALE}
        x, wide = _across([layer], step)
        yield box(
            f"layer {layer.number} of 0",
            x, LAYERS, wide, HIGH,
            text=f"{layer.number}",
            size=13,
            **look,
        )
    for number in range(len(step.buckets)):
        yield from _bucket(number, step, before, now)


def _mirrored(shape):
    """The same of rank 1, which lies below the network as rank 0 lies above it."""
    turned = 2 * NETWORK - HIGH
    mirrored = {
        **shape,
        "id": shape["id"].replace("of 0", "of 1"),
        "y": turned - shape["y"],
    }
    if "from" in shape:
        mirrored["from"] = {"y": turned - shape["from"]["y"]}
    return mirrored


def _across(layers, step):
    """The x and the width of neighbours among the layers, the last one first."""
    column = WIDE / len(step.backward)
    x = LEFT + column * layers[-1].number
    wide = column * len(layers) - GAP
    return x, wide


def _bucket(number, step, before, now):
    """A bucket, and its gradients: they fall into it, and then leave together."""
    bucket = step.buckets[number]
    x, wide = _across(bucket.layers, step)
    is_empty = now < bucket.layers[0].end
    is_full = bucket.ready <= now
    yield box(
        f"bucket {number} of 0",
        x, BUCKETS, wide, HIGH,
        line=GREY,
        dash=True,
        layer=-1,
        text=f"{number}" if is_empty else None,
        size=13,
    )
    # While a full bucket leaves, its last gradient still falls. All of them are gone once it has arrived.
    was_full = bucket.ready <= before
    if not was_full:
        for layer in bucket.layers:
            if layer.end <= now:
                yield _gradient(layer, step, passes=is_full)
    if is_full:
        y, look = _sent(bucket, f"{number}", now)
        yield box(
            f"sent {number} of 0",
            x, y, wide, HIGH,
            size=13,
            **look,
            **{"from": {"y": BUCKETS}},
        )


def _gradient(layer, step, passes):
    x, wide = _across([layer], step)
    return box(
        f"gradient {layer.number} of 0",
        x, BUCKETS, wide, HIGH,
        fill=HELD["gradients"],
        layer=-1,
        passes=passes,
        **{"from": {"y": LAYERS}},
    )


def _sent(bucket, name, now):
    """The y and the look of a full bucket: it waits, travels, or has come back."""
    if now < bucket.begin:
        return BUCKETS, doing("waiting", text=name)
    if bucket.end <= now:
        return BUCKETS, {"fill": HELD["gradients"], "text": "✔"}
    # Half of the time the bucket goes there, and half of it back.
    share = (now - bucket.begin) / (bucket.end - bucket.begin)
    away = 1 - abs(2 * share - 1)
    y = BUCKETS + away * (MEETS - BUCKETS)
    return y, doing("communication", text=name)


def _chart(totals, measured_ms, bucket_mb, alone):
    """The step's time for each bucket size, by the model and as it was measured. Points can be clicked."""
    most = 1.1 * max([*totals.values(), *measured_ms.values()])
    ends = (-0.4, len(totals) - 0.6)
    points = "● model, ■ measured" if measured_ms else "● model"
    chart = Chart(
        "chart",
        LEFT, CHART, WIDE, 70,
        ends, (0, most),
        xticks=dict(enumerate(map(_size, totals))),
        yticks={tick: f"{tick:g}" for tick in ticks(0, most, 3)},
        xlabel="bucket size, MB",
        ylabel=f"the step, ms: {points}, dashed: backward alone",
    )
    yield from chart.axes()
    yield chart.curve("alone", [(end, alone) for end in ends], dash=True, width=1)
    yield chart.curve("model", enumerate(totals.values()))
    rings = {}
    for place, (size, ms) in enumerate(totals.items()):
        click = {"bucket_mb": size}
        x, y = chart.x(place), chart.y(ms)
        rings[size] = [x - RING, y - RING]
        yield circle(f"size {size}", x, y, 5, fill=GREY, click=click, tip=f"{_size(size)} MB: {ms:.1f} ms, the model")
        if size in measured_ms:
            y = chart.y(measured_ms[size])
            tip = f"{_size(size)} MB: {measured_ms[size]:.1f} ms, measured"
            yield box(f"measured {size}", x - 5, y - 5, 10, 10, fill=PURPLE, click=click, tip=tip)
    yield _ring(bucket_mb, rings)


def _ring(bucket_mb, places):
    """The ring around the chosen size, which one drags along the curve."""
    return box(
        "chosen",
        *places[bucket_mb],
        2 * RING, 2 * RING,
        round=RING,
        line=GREEN,
        width=3,
        fill=f"{GREEN}30",
        layer=1,
        drag=("bucket_mb", list(places.values())),
        tip="the size of a bucket",
    )


def _title(step, now):
    computes = "Backward is done"
    for layer in reversed(step.backward):
        if now < layer.end:
            computes = f"Backward computes layer {layer.number}"
    for number, bucket in enumerate(step.buckets):
        if bucket.begin <= now < bucket.end:
            return f"{computes}, bucket {number} is under way"
    return f"{computes}, the network is idle"


def _note(step, now):
    if now == 0:
        return (
            "Each layer leaves its gradient in a bucket. "
            "A full bucket leaves, meets that of the other rank, and comes back averaged."
        )
    if now == step.total:
        return (
            f"Buckets: {len(step.buckets)}. The step has taken {now:.1f} ms: "
            f"backward {step.computed:.1f} ms, communication {step.communicated:.1f} ms, "
            f"of which {step.overlap:.0%} were hidden behind backward."
        )
    return f"{now:.1f} of {step.total:.1f} ms are over."


def _size(megabytes):
    return "all" if megabytes == ALL else f"{megabytes:g}"


def bucket_explorer(backward_ms=5.0, layer_mb=4.0, latency_ms=0.5, mb_per_s=1000, layers=20, bucket_mb=25,
                    measured_ms=None):
    """Bucket explorer: backward leaves gradients in buckets, and full buckets leave over the network while backward
    goes on. Set the bucket size, the latency and the bandwidth; a chart shows the step's time for each bucket size.

    The arguments are those of `simulate`, as far as the explorer offers them, and measured steps,
    {bucket_mb: milliseconds}.
    """
    # A smaller bucket than a layer is like one of a layer, and a larger one than the model is like ALL.
    sizes = [size for size in SIZES if layer_mb <= size < layer_mb * layers] + [ALL]
    controls = {
        "bucket_mb": slider("bucket, MB", bucket_mb, [(_size(size), size) for size in sizes]),
        "latency_ms": slider("latency, ms", latency_ms, LATENCIES),
        "mb_per_s": slider("MB per second", mb_per_s, SPEEDS),
    }
    presets = {
        "slow network": preset("Press Play. Which is busy at the end, backward or the network?",
                               mb_per_s=mb_per_s // 2),
        "high latency": preset("Move the bucket size. Why is a small one bad now?", frame=-1, latency_ms=20),
        "one bucket": preset("Press Play. When can the only all-reduce begin?", bucket_mb=ALL),
    }
    story = partial(scene, sizes=sizes, measured_ms=measured_ms or {}, backward_ms=backward_ms,
                    layer_mb=layer_mb, layers=layers)
    return Stage("bucket_explorer", bucket_explorer.__doc__, story, controls,
                 "Press Play. What does the network do while backward computes, and what is left at the end?",
                 presets, still=11)
