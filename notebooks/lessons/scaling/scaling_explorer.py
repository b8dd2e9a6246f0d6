"""The scaling explorer: what each of 8 to 256 GPUs does in a second, beside published rows, and what it loses.

The model is data parallelism with a fixed batch, as in table A of data/records/published_scaling.json.
Computing shrinks with the number of GPUs. An all-reduce of float32 gradients is added, at the bandwidth that
was published for that many GPUs.
"""

from helpers.instruments import costs
from helpers.widgets.shapes import Chart, box, circle, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from helpers.widgets.still import ticks
from lessons.scaling import planner

_A = planner.published()["A"]
BATCH, LENGTH = _A["batch"], _A["length"]
ALL_REDUCE = {int(gpus): 1e9 * gb for gpus, gb in _A["all_reduce"].items()}
GPUS = tuple(gpus for gpus in ALL_REDUCE if gpus <= BATCH)  # at least one text for each GPU
PUBLISHED = {"1.34B": "1.34B ZeRO-0", "3.57B": "3.57B ZeRO-1"}
MODELS = ("1.34B", "3.57B", "8.86B")
BANDWIDTHS = {"¼ ×": 0.25, "½ ×": 0.5, "1 ×": 1, "2 ×": 2, "4 ×": 4, "8 ×": 8}
WANTED = "#e69f00"
COLUMN, WIDE = 76, 56  #: how far columns are apart, and how wide each is


def shape(model):
    """The `Shape` of one of MODELS."""
    return costs.Shape(**_A["shapes_inferred"][model], vocabulary=_A["vocabulary_inferred"])


def published(model):
    """{GPUs: published tokens/s of each GPU}; empty for a model without a row."""
    return {int(gpus): tokens for gpus, tokens in _A["tokens"].get(PUBLISHED.get(model), {}).items()}


def communication(model, gpus, faster=1.0):
    """Seconds of the all-reduce of a step, over a network `faster` times as fast as the published one."""
    return 2 * (gpus - 1) / gpus * 4 * shape(model).parameters / (faster * planner.bandwidth(ALL_REDUCE, gpus))


def computing(model, batch=BATCH):
    """Seconds that one GPU alone would compute for `batch` texts, from the published row of 8 GPUs.

    A model without a row is computed at the FLOP/s of 3.57B.
    """
    known = model if published(model) else "3.57B"
    whole = 8 * (BATCH * LENGTH / (8 * published(known)[8]) - communication(known, 8))
    return whole * batch / BATCH * shape(model).flops(LENGTH) / shape(known).flops(LENGTH)


def step(model, gpus, faster=1.0, overlap=0.0, batch=BATCH):
    """Seconds of a step: (computing, communication that is not hidden).

    overlap: the share of computing, 0 to 1, that can hide communication. Gradients exist only in backward,
        about two thirds of computing, so the slider ends at 65 %.
    """
    compute = computing(model, batch) / gpus
    return compute, max(0.0, communication(model, gpus, faster) - overlap * compute)


def tokens(model, gpus, batch=BATCH, **how):
    """Tokens per second of each GPU; `how` as for `step`."""
    return batch * LENGTH / gpus / sum(step(model, gpus, batch=batch, **how))


def errors(model):
    """{GPUs: predicted/published − 1} at the published setting, without the row of 8 GPUs: it is fitted."""
    return {gpus: tokens(model, gpus) / real - 1 for gpus, real in published(model).items() if gpus > 8}


def scene(model, bandwidth, overlap, batch):
    """A column for each number of GPUs, one after the other: how high it is says what a GPU does without sending."""
    how = {"faster": bandwidth, "overlap": overlap / 100}
    ideal = BATCH * LENGTH / computing(model)  # tokens/s of a GPU that never sends
    marks = {number: f"{number:,g}" for number in ticks(0, ideal, 4)}
    chart = Chart("chart", 90, 32, COLUMN * len(GPUS), 270, (0, len(GPUS)), (0, 1.1 * ideal), {}, marks, "",
                  "tokens/s of each GPU")
    first = tokens(model, GPUS[0], batch, **how)
    shapes, frames = [*chart.axes(), *_names(chart, model, first)], []
    for place, gpus in enumerate(GPUS):
        rate, real = tokens(model, gpus, batch, **how), published(model).get(gpus)
        shapes = [*shapes, *_column(chart, place, gpus, (model, batch, how), ideal)]
        if real:
            shapes += _published(chart, place, model, gpus, real)
        if place == len(GPUS) - 1:
            shapes.append(_handle(chart, model, batch, how))
        compute, away = step(model, gpus, batch=batch, **how)
        frames.append({
            "title": f"{gpus} GPUs: each {rate:,.0f} tokens/s, {rate / first:.0%} of those on {GPUS[0]}",
            "note": f"A step takes {compute + away:.2f} s: {compute:.2f} s of computing, {away:.2f} s of communication "
                    f"that is not hidden. All GPUs together: {gpus * rate / 1e6:.2f} million tokens/s.",
            "shapes": shapes})
    return {"size": (560, 440), "pace": 1300, "frames": frames}


def _names(chart, model, first):
    """What stands below the columns, the line at an efficiency of 80 %, and what colours mean."""
    names = ["GPUs", "texts each"] + ["error"] * bool(published(model))
    for row, name in enumerate(names):
        yield words(f"row {name}", chart.left - 8, _below(chart, row), name, "end", size=14)
    y = _below(chart, 3) + 10
    yield box("colour compute", 90, y - 7, 14, 14, **doing("compute"))
    yield words("compute", 110, y, "computing", size=14)
    yield box("colour sent", 200, y - 7, 14, 14, **doing("communication"))
    yield words("sent", 220, y, "sending, in % of a step", size=14)
    if published(model):
        yield circle("dot", 417, y, 6, fill="#ffffff", line="#111111", width=2)
        yield words("published", 430, y, "published", size=14)
    high = chart.y(0.8 * first)
    yield path("wanted", [[chart.left, high], [chart.left + chart.width, high]], line=WANTED, width=2.5, dash=True,
               layer=1)
    yield path("colour wanted", [[90, y + 24], [114, y + 24]], line=WANTED, width=2.5, dash=True)
    yield words("efficiency", 120, y + 24, "80 % of what each of 8 GPUs does", size=14)


def _below(chart, row):
    return chart.top + chart.height + 14 + 20 * row


def _column(chart, place, gpus, setting, ideal):
    """Its lower part is the share of a step that a GPU computes; above it, what is lost to communication.

    The narrow part within is communication that computing hides.
    """
    model, batch, how = setting
    rate, compute = tokens(model, gpus, batch, **how), computing(model, batch) / gpus
    left, top, bottom = chart.x(place) + 10, chart.y(rate), chart.y(0)
    hidden = min(communication(model, gpus, how["faster"]), how["overlap"] * compute) / compute
    come = {"from": {"x": left - COLUMN, "opacity": 0}}
    yield box(f"computes {gpus}", left, top, WIDE, bottom - top, round=0, **doing("compute"), **come,
              tip=f"{gpus} GPUs: {rate:,.0f} tokens/s each")
    yield box(f"sends {gpus}", left, chart.y(ideal), WIDE, top - chart.y(ideal), round=0, **doing("communication"),
              **come)
    yield box(f"hidden {gpus}", left + WIDE - 12, top, 12, hidden * (bottom - top), round=0,
              **doing("communication"), tip="hidden: it is sent while the GPU computes")
    yield words(f"GPUs {gpus}", left + WIDE / 2, _below(chart, 0), str(gpus), "middle", bold=True, size=14)
    yield words(f"texts {gpus}", left + WIDE / 2, _below(chart, 1), f"{batch // gpus:,}", "middle", size=14)
    yield words(f"lost {gpus}", left + WIDE / 2, chart.y(ideal) - 16, f"{1 - rate / ideal:.0%}", "middle", size=14)


def _published(chart, place, model, gpus, real):
    x = chart.x(place) + 10 + WIDE / 2
    missed = errors(model).get(gpus)
    yield circle(f"published {gpus}", x, chart.y(real), 6, fill="#ffffff", line="#111111", width=2, layer=1,
                 tip=f"published: {real:,.0f} tokens/s")
    yield words(f"error {gpus}", x, _below(chart, 2), "fitted" if missed is None else f"{missed:+.1%}", "middle",
                size=14)


def _handle(chart, model, batch, how):
    """The top of the last column can be dragged: a faster network raises it."""
    places = []
    for faster in BANDWIDTHS.values():
        rate = tokens(model, GPUS[-1], batch, **{**how, "faster": faster})
        places.append([chart.x(len(GPUS) - 1) + 4, chart.y(rate) - 7])
    x, y = places[list(BANDWIDTHS.values()).index(how["faster"])]
    return box("handle", x, y, WIDE + 12, 14, fill="#ffffff", line="#111111", text="↕", size=13, layer=1,
               tip="drag: the network's bandwidth", drag=("bandwidth", places))


def scaling_explorer():
    """Scaling explorer: choose the model, the bandwidth, the overlap and the batch. The picture shows the tokens per
    second of each GPU on 8 to 256 GPUs beside published rows, and the share of a step that is communication. The
    model's errors stand below."""
    controls = {
        "model": buttons("Model", MODELS[0], MODELS),
        "bandwidth": slider("Bandwidth (1 × as published)", 1, BANDWIDTHS.items()),
        "overlap": slider("Overlap, %", 0, (*range(0, 61, 10), 65)),
        "batch": slider("Texts in a step", BATCH, [BATCH * 2**power for power in range(5)]),
    }
    presets = {
        "slow network": preset("From how many GPUs on does most of a step go into communication?", frame=-1,
                               bandwidth=0.25),
        "with overlap": preset("Where does the red part vanish, and where does it only shrink?", frame=-1, overlap=65),
        "a larger batch": preset("Nothing is sent faster. Why does each GPU do more?", frame=-1, batch=16 * BATCH),
    }
    return Stage("scaling_explorer", scaling_explorer.__doc__, scene, controls,
                 "Press Play: twice the GPUs, and twice again. What does each of them do in a second?", presets)
