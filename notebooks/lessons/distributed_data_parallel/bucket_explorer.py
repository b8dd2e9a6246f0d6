"""Buckets of gradients that leave while backward still computes: two ranks, and a network between them; by a model."""

from functools import partial
from typing import NamedTuple

from helpers.figures import ACTIVITIES, HELD
from helpers.widgets.shapes import PALE, Chart, Lanes, box, circle, doing, path, words
from helpers.widgets.stage import Stage, preset, slider
from helpers.widgets.still import ticks

#: What the explorer offers: bucket sizes in MB, of which the last one holds everything; milliseconds; MB per second.
SIZES = (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 100, 1000)
LATENCIES = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30)
SPEEDS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)

SIZE = (560, 464)
LEFT, WIDE = 90, 460  #: of all that lies beside the names
FRAMES = 25
#: By rank: where its layers lie, and its buckets; and where a bucket meets that of the other rank.
LAYERS = (22, 180)
BUCKETS = (50, 148)
MEETS = (88, 110)
LAYER_HIGH = (22, 14)
BUCKET_HIGH = 22
GAP = 1.5


class Step(NamedTuple):
    """One backward pass and its all-reduces; times in milliseconds from the beginning of backward."""

    backward: list  # [(layer, begin, end)], the last layer first
    buckets: list  # [(megabytes, when its last gradient is there, when its all-reduce begins, and ends)]

    @property
    def computed(self):
        """Milliseconds until backward ends."""
        return self.backward[-1][2]

    @property
    def total(self):
        """Milliseconds until both backward and the last all-reduce have ended."""
        return max(self.computed, self.buckets[-1][3])

    @property
    def communicated(self):
        """Milliseconds of communication in all."""
        return sum(end - begin for _, _, begin, end in self.buckets)

    @property
    def overlap(self):
        """The share of the communication, 0 to 1, that runs while backward computes."""
        hidden = sum(max(0.0, min(end, self.computed) - begin) for _, _, begin, end in self.buckets)
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
    backward = [(layers - 1 - place, place * backward_ms, (place + 1) * backward_ms)
                for place in range(layers)]
    buckets, free = [], 0.0
    for members in fill_buckets([layer_mb] * layers, bucket_mb):
        megabytes, ready = len(members) * layer_mb, backward[members[-1]][2]
        begin = max(ready, free)
        free = begin + latency_ms + 1000 * megabytes / mb_per_s
        buckets.append((megabytes, ready, begin, free))
    return Step(backward, buckets)


def scene(bucket_mb, latency_ms, mb_per_s, backward_ms=5.0, layer_mb=4.0, layers=20, sizes=SIZES,
          measured_ms=None):
    """Frames at equal distances in time, from the beginning of backward to the end of the last all-reduce.

    The arguments are those of `simulate`; for the chart, sizes, and measured steps, {bucket_mb: milliseconds}.
    """
    model = {"backward_ms": backward_ms, "layer_mb": layer_mb, "latency_ms": latency_ms, "mb_per_s": mb_per_s,
             "layers": layers}
    step = simulate(bucket_mb, **model)
    members = fill_buckets([layer_mb] * layers, bucket_mb)
    lanes = Lanes(["backward", "full", "all-reduce"], step.total, LEFT, 208, WIDE, 24)
    fixed = [*_names(), *_chart(bucket_mb, sizes, measured_ms or {}, model)]
    frames = []
    before = 0
    for number in range(FRAMES + 1):
        now = step.total * number / FRAMES
        spans = _spans(step, members, latency_ms, now)
        shapes = [*fixed, *lanes.shapes(now), *lanes.bars(spans, now), *_full(step, lanes, now)]
        for rank in (0, 1):
            shapes += _layers(rank, step, now)
            for bucket, places in enumerate(members):
                shapes += _bucket(rank, bucket, places, step, before, now)
        frames.append({"title": _title(step, now), "note": _note(step, now), "shapes": shapes})
        before = now
    return {"size": SIZE, "axis": lanes.axis, "flows": True, "pace": 320, "frames": frames}


def _names():
    for name, y in {"rank 0": 33, "network": 110, "rank 1": 187}.items():
        yield words(name, LEFT - 6, y, name, "end", size=14, bold=name != "network" or None)
    for rank in (0, 1):
        yield words(f"buckets of {rank}", LEFT - 6, BUCKETS[rank] + 11, "buckets", "end", size=14)
    yield words("backwards", LEFT + WIDE, 10, "← backward: from the last layer to the first", "end", size=14)
    yield words("legend", LEFT, 311, "light red: latency, dark red: bytes, ✔: averaged", size=14)
    yield box("the network", LEFT, 109, WIDE, 2, fill="#888888", opacity=0.5, layer=-1)


def _layers(rank, step, now):
    """A rank's layers, blue once backward has come to them."""
    wide = WIDE / len(step.backward)
    has_room = rank == 0 and wide >= 18
    for layer, begin, _ in step.backward:
        look = doing("compute") if begin < now else {"fill": PALE}
        yield box(f"layer {layer} of {rank}", LEFT + wide * layer, LAYERS[rank], wide - GAP, LAYER_HIGH[rank],
                  size=13, text=f"{layer}" if has_room else None, **look)


def _bucket(rank, bucket, places, step, before, now):
    """A bucket, and its gradients: they fall into it, and then leave together."""
    column = WIDE / len(step.backward)
    x = LEFT + column * step.backward[places[-1]][0]
    wide = column * len(places) - GAP
    name = _name(bucket, wide)
    is_empty = now < step.backward[places[0]][2]
    yield box(f"bucket {bucket} of {rank}", x, BUCKETS[rank], wide, BUCKET_HIGH, line="#888888", dash=True,
              layer=-1, size=13, text=name if is_empty else None)
    ready = step.buckets[bucket][1]
    for place in places:
        layer, _, there = step.backward[place]
        # The last gradient still falls while its bucket leaves.
        if there <= now and (now < ready or before < there):
            yield box(f"gradient {layer} of {rank}", LEFT + column * layer, BUCKETS[rank], column - GAP, BUCKET_HIGH,
                      layer=-1, fill=HELD["gradients"], passes=ready <= now or None,
                      **{"from": {"y": LAYERS[rank]}})
    if ready <= now:
        y, look = _sent(rank, step.buckets[bucket], name, now)
        yield box(f"sent {bucket} of {rank}", x, y, wide, BUCKET_HIGH, size=13, **look,
                  **{"from": {"y": BUCKETS[rank]}})


def _sent(rank, bucket, name, now):
    """Where a full bucket is, and what it looks like: it waits, travels, or has come back."""
    _, _, begin, end = bucket
    home = BUCKETS[rank]
    if now < begin:
        return home, doing("waiting", text=name)
    if end <= now:
        return home, {"fill": HELD["gradients"], "text": name and "✔"}
    share = (now - begin) / (end - begin)
    away = 1 - abs(2 * share - 1)  # half of the time there, half of it back
    return home + away * (MEETS[rank] - home), doing("communication", text=name)


def _name(bucket, wide):
    """What a bucket is called where there is so much room."""
    if wide >= 75:
        return f"bucket {bucket}"
    return f"{bucket}" if wide >= 18 else None


def _spans(step, members, latency_ms, now):
    """What happens when, as `Lanes.bars` takes it: computing, for each bucket; its latency; and its bytes."""
    latency = {"fill": "#f1c0ba", "line": ACTIVITIES["communication"]}
    for bucket, (megabytes, ready, begin, end) in enumerate(step.buckets):
        computes = step.backward[members[bucket][0]][1]
        arrives = begin + latency_ms
        for name, row, since, until, look in (
            ("backward", 0, computes, ready, doing("compute")),
            ("latency", 2, begin, arrives, latency),
            ("bytes", 2, arrives, end, doing("communication")),
        ):
            text = _name(bucket, WIDE * (min(until, now) - since) / step.total)
            tip = f"bucket {bucket}, {megabytes:g} MB: {name} {until - since:.3g} ms"
            yield f"{name} {bucket}", row, since, until, {**look, "text": text, "tip": tip}


def _full(step, lanes, now):
    """A line from where a bucket is full to where its all-reduce begins: the longer it waits, the more it slants."""
    top = lanes.y + lanes.row
    for bucket, (_, ready, begin, _) in enumerate(step.buckets):
        if ready <= now:
            ends = [lanes.at(ready), top], [lanes.at(min(begin, now)), top + lanes.row]
            yield path(f"full {bucket}", ends, opacity=0.7)


def _chart(bucket_mb, sizes, measured_ms, model):
    """The step's time for each bucket size, by `simulate` and as it was measured. Points can be clicked."""
    totals = [simulate(size, **model).total for size in sizes]
    alone = model["backward_ms"] * model["layers"]
    most = 1.1 * max([*totals, *measured_ms.values()])
    ends = (-0.4, len(sizes) - 0.6)
    xticks = dict(enumerate(map(_size, sizes)))
    yticks = {tick: f"{tick:g}" for tick in ticks(0, most, 3)}
    points = "● model, ■ measured" if measured_ms else "● model"
    chart = Chart("chart", LEFT, 350, WIDE, 70, ends, (0, most), xticks, yticks, "bucket size, MB",
                  f"the step, ms: {points}, dashed: backward alone")
    yield from chart.axes()
    yield chart.curve("alone", [(end, alone) for end in ends], dash=True, width=1)
    yield chart.curve("model", enumerate(totals))
    places = []
    for place, (size, total) in enumerate(zip(sizes, totals, strict=True)):
        x, y = chart.x(place), chart.y(total)
        places.append([x - 9, y - 9])
        yield circle(f"size {size}", x, y, 5, fill="#888888", click={"bucket_mb": size},
                     tip=f"{_size(size)} MB: {total:.1f} ms")
    for size, ms in measured_ms.items():
        x, y = chart.x(sizes.index(size)), chart.y(ms)
        yield box(f"measured {size}", x - 5, y - 5, 10, 10, fill="#9a5fb5", click={"bucket_mb": size},
                  tip=f"measured, {_size(size)} MB: {ms:.1f} ms")
    x, y = places[sizes.index(bucket_mb)]
    yield box("chosen", x, y, 18, 18, round=9, line="#009e73", fill="#009e7330", width=3, layer=1,
              drag=("bucket_mb", places), tip=f"the chosen size, {_size(bucket_mb)} MB")


def _title(step, now):
    layer = next((layer for layer, _, end in step.backward if now < end), None)
    computes = "Backward is done" if layer is None else f"Backward computes layer {layer}"
    for bucket, (_, _, begin, end) in enumerate(step.buckets):
        if begin <= now < end:
            return f"{computes}, bucket {bucket} is under way"
    return f"{computes}, the network is idle"


def _note(step, now):
    if now == 0:
        return ("Each layer leaves its gradient in a bucket. A full bucket leaves, meets that of the other rank, and "
                "comes back averaged.")
    buckets = len(step.buckets)
    if now == step.total:
        return (f"Buckets: {buckets}. The step has taken {step.total:.1f} ms: backward {step.computed:.1f} ms, "
                f"communication {step.communicated:.1f} ms, of which {step.overlap:.0%} were hidden behind backward.")
    there = sum(end <= now for _, _, end in step.backward)
    full = sum(ready <= now for _, ready, _, _ in step.buckets)
    averaged = sum(end <= now for *_, end in step.buckets)
    return (f"After {now:.1f} ms: {there} of {len(step.backward)} gradients are there. "
            f"Of {buckets} buckets, full: {full}, averaged: {averaged}.")


def _size(megabytes):
    return "all" if megabytes == SIZES[-1] else f"{megabytes:g}"


def bucket_explorer(backward_ms=5.0, layer_mb=4.0, latency_ms=0.5, mb_per_s=1000.0, layers=20, bucket_mb=25,
                    measured_ms=None):
    """Bucket explorer: backward leaves gradients in buckets, and full buckets leave over the network while backward
    goes on. Set the bucket size, the latency and the bandwidth; a chart shows the step's time for each bucket size.

    The arguments are those of `simulate`, and measured steps, {bucket_mb: milliseconds}.
    """
    measured_ms = measured_ms or {}
    # Smaller than a layer is like a layer, and larger than the model is like all.
    offered = [size for size in SIZES if layer_mb <= size < layer_mb * layers]
    sizes = sorted({*offered, SIZES[-1], bucket_mb, *measured_ms})
    controls = {
        "bucket_mb": slider("bucket, MB", bucket_mb, [(_size(size), size) for size in sizes]),
        "latency_ms": slider("latency, ms", latency_ms, sorted({*LATENCIES, latency_ms})),
        "mb_per_s": slider("MB per second", mb_per_s, sorted({*SPEEDS, mb_per_s})),
    }
    slow = max(speed for speed in SPEEDS if speed <= max(SPEEDS[0], mb_per_s / 2))
    presets = {
        "slow network": preset("Press Play. Which is busy at the end, backward or the network?", mb_per_s=slow),
        "high latency": preset("Move the bucket size. Why is a small one bad now?", frame=-1, latency_ms=20),
        "one bucket": preset("Press Play. When can the only all-reduce begin?", bucket_mb=SIZES[-1]),
    }
    story = partial(scene, backward_ms=backward_ms, layer_mb=layer_mb, layers=layers, sizes=sizes,
                    measured_ms=measured_ms)
    return Stage("bucket_explorer", bucket_explorer.__doc__, story, controls,
                 "Press Play. What does the network do while backward computes, and what is left at the end?", presets,
                 still=11)
