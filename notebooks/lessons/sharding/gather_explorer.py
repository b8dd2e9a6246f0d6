"""The gather explorer: the layers of a model on each rank, as FSDP2 gathers, uses and drops them, and the bytes held.

`fsdp_step.moments` says what happens. Here it is drawn: above, each rank's piece of each layer and what comes and goes;
below, the same bytes as bars over time.
"""

from functools import cache
from itertools import product

from helpers.figures import HELD
from helpers.widgets.shapes import PALE, Chart, box, circle, doing, key, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset
from lessons.sharding.fsdp_step import (
    BYTES,
    EMBEDDINGS,
    HEAD,
    KINDS,
    PARAMETERS,
    REST,
    UNITS,
    Settings,
    moments,
    sent,
)

PREFETCH = ("none", "backward", "both")
BATCH = ("one part", "two parts", "no sync in part 1")
LOOKS = {
    "shards": {"fill": HELD["weights"]},
    "gathered": {"fill": HELD["gathered"]},
    "buffers": {"fill": HELD["gathered"], "hatch": "///"},
    "gradients": {"fill": HELD["gradients"]},
}
MEANS = {"shards": "own pieces", "gathered": "gathered", "buffers": "buffers", "gradients": "gradients"}
#: Where the layers begin, how high all ranks are together, and the gap between two layers.
LEFT, TOP, HIGH, GAP = 62, 32, 160, 8
#: Of a block; the rest is as much narrower as it has fewer bytes.
BLOCK = 96
#: The chart of bytes over time.
CHART_TOP, CHART_HIGH, CHART_WIDE = 246, 176, 488
HANDLE = 8
HIDDEN = {"opacity": 0}
EDGE = {"line": "#333333", "layer": 1}  #: of what belongs to the rank


def _kilobytes(size):
    return f"{size / 1000:,.0f} kB"


def _places():
    """{unit, or a part of the rest: (left edge, width)}."""
    found = {}
    x = LEFT
    for unit in UNITS:
        wide = round(BLOCK * BYTES[unit] / BYTES[UNITS[1]])
        found[unit] = x, wide
        x += wide + GAP
    left, wide = found[REST]
    embeddings = round(wide * BYTES[EMBEDDINGS] / BYTES[REST])
    found[EMBEDDINGS] = left, embeddings
    found[HEAD] = left + embeddings, wide - embeddings
    return found


PLACES = _places()


def shown(settings):
    """The moments in which something is to be seen, each with the units that have travelled since the one before.

    A unit that is there already is not gathered; one that is kept is not dropped after forward.
    """
    found = []
    travels = ()
    for moment in moments(settings):
        travels += moment.travels
        is_there = moment.act == "gather" and moment.unit not in moment.travels
        is_kept = moment.phase == "forward" and moment.act == "drop" and not settings.reshard
        if not is_there and not is_kept:
            found.append((moment, travels))
            travels = ()
    return found


@cache
def _room(batch):
    """So many moments, and so many bytes, as a step takes at most: charts of one `batch` can be compared."""
    most_moments, most_bytes = 0, 0
    for ranks, reshard, prefetch in product((2, 4), (True, False), PREFETCH):
        step = moments(Settings(ranks, reshard, prefetch, batch))
        most_moments = max(most_moments, len(shown(Settings(ranks, reshard, prefetch, batch))))
        most_bytes = max(most_bytes, *(sum(moment.held(ranks).values()) for moment in step))
    return most_moments, most_bytes


def scene(ranks, reshard, prefetch, batch):
    """A frame for each moment of `shown`."""
    settings = Settings(ranks, reshard, prefetch, batch)
    step = shown(settings)
    chart = _chart(batch)
    fixed = [*_places_of(ranks), *_legend(), *chart.axes(), *_phases(step, chart),
             words("unit", LEFT - 8, CHART_TOP - 16, "kB", "end", size=13)]
    handle = [[chart.x(number + 1) - HANDLE, chart.top + chart.height - HANDLE] for number in range(len(step))]
    bars = list(_bars(step, ranks, chart))
    frames = []
    away = most = 0
    for number, (moment, travels) in enumerate(step):
        total = sum(moment.held(ranks).values())
        most = max(most, total)
        away += sent(travels, ranks)
        title, note = _said(settings, moment, travels)
        held = f"Each rank holds {_kilobytes(total)}, most so far {_kilobytes(most)}."
        numbers = f"{held} It has sent {_kilobytes(away)}."
        frames.append({
            "title": title,
            "note": note,
            "alt": numbers,
            "shapes": [
                *fixed,
                *_headers(moment, travels, ranks),
                *_comings(moment, ranks),
                *_messages(moment, travels, ranks),
                *_grown(bars, number, chart),
                words("numbers", LEFT, CHART_TOP - 16, numbers, size=14),
                box("now", chart.x(number + 1) - 1, CHART_TOP - 4, 2, CHART_HIGH + 4, fill="#888888", layer=1),
                circle("handle", chart.x(number + 1), chart.top + chart.height, HANDLE, fill="#555555", layer=1,
                       drag=("moment", handle), tip="now: drag it through the step"),
            ],
        })
    return {"size": [560, 462], "pace": 900, "frames": frames}


def _places_of(ranks):
    """What stays: the ranks' names, a pale place for each layer of each rank, and on it the rank's own piece."""
    row = HIGH // ranks
    _, high = _tracks(ranks)
    for rank in range(ranks):
        top = TOP + row * rank
        yield words(f"rank {rank}", LEFT - 8, top + row / 2, f"rank {rank}", "end", size=14)
        for number, unit in enumerate(UNITS):
            x, wide = PLACES[unit]
            yield box(f"p{number}{rank}", x, top, wide, row - 4, fill="#888888", opacity=0.15, layer=-1)
            x, wide = _strip(unit, rank, ranks)
            yield box(f"own{number}{rank}", x, top, wide, high, **EDGE, **LOOKS["shards"])


def _legend():
    shapes = []
    for place, kind in enumerate(KINDS):
        shapes += key(MEANS[kind], LEFT + 124 * place, TOP + HIGH + 14, **LOOKS[kind])
    return shapes


def _chart(batch):
    slots, most = _room(batch)
    ticks = {size: f"{size / 1000:,.0f}" for size in range(0, most, 500_000)}
    return Chart("held", LEFT, CHART_TOP, CHART_WIDE, CHART_HIGH, (0, slots), (0, most), {}, ticks)


def _phases(step, chart):
    """Below the chart: where forward and backward of each part lie."""
    spans = {}
    for number, (moment, _) in enumerate(step):
        if moment.phase != "before":
            spans.setdefault((moment.part, moment.phase), []).append(number)
    for (part, phase), numbers in spans.items():
        name = phase if step[-1][0].part == 0 else f"{phase} {part + 1}"
        left, right = chart.x(numbers[0]) + 2, chart.x(numbers[-1] + 1) - 2
        yield box(f"span {name}", left, CHART_TOP + CHART_HIGH + 12, right - left, 3, fill="#888888")
        yield words(f"name {name}", (left + right) / 2, CHART_TOP + CHART_HIGH + 27, name, "middle", size=14)


def _headers(moment, travels, ranks):
    """The layers' names: which one computes, and which ones are on their way."""
    computes = REST if moment.unit in (EMBEDDINGS, HEAD) else moment.unit
    for unit in UNITS:
        x, wide = PLACES[unit]
        look = {"fill": PALE}
        if unit in travels:
            look = doing("communication")
        if moment.act == "use" and unit == computes:
            look = doing("compute")
        what = "embeddings, last norm and head" if unit == REST else f"{unit}: attention and a small net"
        tip = (f"{what}; {PARAMETERS[unit]:,} parameters, {BYTES[unit]:,} bytes in float32; a rank's own piece, some "
               f"rows of each tensor, {BYTES[unit] // ranks:,} bytes")
        yield box(f"layer {unit}", x, 4, wide, 22, text=unit, size=14, tip=tip, **look)


def _tracks(ranks):
    """Of a rank's row: how far its three tracks are apart, and how high each is."""
    apart = (HIGH // ranks - 4) // 3
    return apart, apart - 1


def _strip(unit, rank, ranks):
    """Where a rank's piece of a unit lies: (left edge, width)."""
    x, wide = PLACES[unit]
    return x + wide * rank // ranks, wide // ranks


def _comings(moment, ranks):
    """What comes and goes on each rank: whole weights, below them buffers, below them gradients."""
    row = HIGH // ranks
    apart, high = _tracks(ranks)
    for rank, (number, unit) in product(range(ranks), enumerate(UNITS)):
        top = TOP + row * rank
        x, wide = _strip(unit, rank, ranks)
        yield box(f"mean{number}{rank}", x, top + 2 * apart, wide, high, **EDGE, **LOOKS["gradients"],
                  **({} if unit in moment.reduced else HIDDEN))
        # What comes and goes is always there, but not always to be seen: so it fades.
        for track, kind, name, is_held in _comes_and_goes(moment, unit):
            x, wide = PLACES[name]
            yield box(f"{kind[:2]}{number}{rank}{name[0]}", x, top + track * apart, wide, high, **LOOKS[kind],
                      **({} if is_held else HIDDEN))


def _comes_and_goes(moment, unit):
    """(track, kind, unit or its part, whether a rank holds it)."""
    yield 0, "gathered", unit, unit in moment.gathered
    yield 1, "buffers", unit, unit in moment.outputs | moment.inputs
    for name in (EMBEDDINGS, HEAD) if unit == REST else (unit,):
        yield 2, "gradients", name, name in moment.whole


def _messages(moment, travels, ranks):
    """The pieces that have travelled: weights from their owner to all others, gradients from all to the owner."""
    apart, high = _tracks(ranks)
    row = HIGH // ranks
    is_reduced = moment.act == "drop"
    look = LOOKS["gradients" if is_reduced else "shards"]
    for unit, owner, other in product(travels, range(ranks), range(ranks)):
        if owner == other:
            continue
        x, wide = _strip(unit, owner, ranks)
        sender, receiver = (other, owner) if is_reduced else (owner, other)
        begins, ends = (2, 2) if is_reduced else (0, 1 if unit in moment.outputs else 0)
        yield box(f"{UNITS.index(unit)}{sender}{receiver}", x, TOP + row * receiver + ends * apart, wide, high,
                  passes=True, **look, **{"from": {"y": TOP + row * sender + begins * apart}})


def _bars(step, ranks, chart):
    """Bars of the whole step: [(number of the first moment, number after the last one, box)].

    A bar is as long as nothing changes in it, and below it.
    """
    begun, done = {}, []
    for number, (moment, _) in enumerate([*step, (None, ())]):
        below = 0
        for kind, size in (moment.held(ranks) if moment else dict.fromkeys(KINDS, 0)).items():
            if kind in begun and begun[kind][1:] != (below, size):
                done.append((kind, number, *begun.pop(kind)))
            if size and kind not in begun:
                begun[kind] = number, below, size
            below += size
    for kind, end, first, below, size in done:
        left, top = chart.x(first), chart.y(below + size)
        bar = box(f"{kind[:2]} {first}", left, top, chart.x(end) - left, chart.y(below) - top, round=0, **LOOKS[kind],
                  **{"from": {"w": 0}})
        yield first, end, bar


def _grown(bars, now, chart):
    """The bars until the moment of that number."""
    for first, end, bar in bars:
        if end <= now + 1:
            yield bar
        elif first <= now:
            yield {**bar, "w": chart.x(now + 1) - bar["x"]}


def _said(settings, moment, travels):
    """The title and the note of a frame."""
    if moment.phase == "before":
        share = {2: "half", 4: "a quarter"}[settings.ranks]
        return f"Before: each rank holds {share} of each layer", "No rank holds a whole layer, so none can compute yet."
    unit = _called(moment.unit)
    if moment.act == "gather":
        title = f"{unit} is gathered"
        note = "Each rank sends its piece to the others. FSDP2 gathers into a buffer, and copies the weights out of it."
    elif moment.act == "use":
        title, note = _used(moment, travels)
    elif moment.phase == "forward":
        title = f"{unit} is dropped"
        note = "Each rank keeps its own piece. The buffer stays until the next gather is copied out."
    elif moment.reduces:
        title = f"{unit} is dropped, its gradients are reduced"
        note = ("The gradients are copied into a buffer, and travel. Each rank keeps the mean for its own piece. The "
                "buffer stays for now.")
        if moment.unit == REST:
            note = "Backward has ended. Each rank holds its pieces of the weights, and those of the mean gradients."
    else:
        title = f"{unit} is dropped, its gradients stay whole"
        note = "Nothing is sent. These are this rank's own gradients, and the next part will add to them."
    part = "" if settings.batch == "one part" else f" {moment.part + 1}"
    return f"{moment.phase.capitalize()}{part}: {title}", note


def _called(unit):
    """A unit, or a part of the rest, in a sentence."""
    return f"the {unit}" if unit in (REST, EMBEDDINGS, HEAD) else unit


def _used(moment, travels):
    """Title and note while a layer computes."""
    verb = "compute" if moment.unit == EMBEDDINGS else "computes"
    title = f"{_called(moment.unit)} {verb}"
    if travels:
        title += f", {travels[0]} is gathered"
        note = "Meanwhile the next layer's pieces travel into a buffer. That layer need not wait for them later."
    elif moment.phase == "forward":
        note = "It needs all of its weights. The activations that it leaves for backward are not drawn."
    else:
        note = "Each rank now has whole gradients of it, from its own part of the batch."
    return title, note


def gather_explorer():
    """Gather, use, drop: the layers of a model on each rank, whose pieces travel before a layer computes; and bars of
    the bytes that a rank holds, through a step of FSDP2."""
    controls = {
        "ranks": buttons("ranks", 4, (2, 4)),
        "reshard": checkbox("reshard_after_forward", True),
        "prefetch": buttons("prefetch", "none", PREFETCH),
        "batch": buttons("batch", "one part", BATCH),
    }
    presets = {
        "kept whole": preset("Press Play. What is no longer sent in backward? What does a rank hold at most?",
                             reshard=False),
        "prefetch": preset("Two ranks. Press Play. What travels while a layer computes, and where does it wait? What "
                           "changes with none?", ranks=2, prefetch="both"),
        "no sync": preset("Two ranks, a batch in two parts. Press Play. What lies in the orange rows between the "
                          "parts? What is sent in each?", ranks=2, batch="no sync in part 1"),
    }
    return Stage("gather_explorer", gather_explorer.__doc__, scene, controls,
                 look="Press Play. How many layers are whole at a time? Which one comes and goes only once?",
                 presets=presets, still=8)
