"""The scaling explorer: columns that come one by one, for what each of 8 to 256 GPUs does in a second, and loses.

The model is data parallelism with a fixed batch, as in table A of data/records/published_scaling.json.
Computing shrinks with the number of GPUs. An all-reduce of float32 gradients is added, at the bandwidth that
was published for that many GPUs.
"""

from helpers.instruments import costs
from helpers.widgets.shapes import Chart, box, circle, doing, key, path, ticks, words
from helpers.widgets.stage import Stage, buttons, preset, slider
from lessons.scaling import planner

_A = planner.published()["A"]
BATCH, LENGTH = _A["batch"], _A["length"]
ALL_REDUCE = {int(gpus): 1e9 * gb for gpus, gb in _A["all_reduce"].items()}
GPUS = tuple(gpus for gpus in ALL_REDUCE if gpus <= BATCH)  # at least one text for each GPU
PUBLISHED = {"1.34B": "1.34B ZeRO-0", "3.57B": "3.57B ZeRO-1"}
MODELS = ("1.34B", "3.57B", "8.86B")
#: Times as fast as the published network.
BANDWIDTHS = {"¼ ×": 0.25, "½ ×": 0.5, "published": 1, "2 ×": 2, "4 ×": 4, "8 ×": 8}
WANTED = "#e69f00"
DOT = {"fill": "#ffffff", "line": "#111111", "width": 2}  #: what is published
LEFT = 90  #: where the first column's place begins
COLUMN, WIDE = 76, 56  #: how far columns are apart, and how wide each is
ROWS, KEYS = 316, 386  #: how far down the rows below the columns are, and the colours' names


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
    how = {"batch": batch, "faster": bandwidth, "overlap": overlap / 100}
    ideal = BATCH * LENGTH / computing(model)  # tokens/s of a GPU that never sends
    marks = {number: f"{number:,g}" for number in ticks(0, ideal, 4)}
    chart = Chart(
        "chart", LEFT, 32, COLUMN * len(GPUS), 270,
        xs=(0, len(GPUS)),
        ys=(0, 1.1 * ideal),
        xticks={},
        yticks=marks,
        ylabel="tokens/s of each GPU",
    )
    first = tokens(model, GPUS[0], **how)
    shapes = [*chart.axes(), *_legend(chart, first), *_names(model, batch)]
    frames = []
    for gpus in GPUS:
        shapes = [*shapes, *_column(chart, ideal, model, gpus, how)]
        if gpus == GPUS[-1]:
            shapes.append(_handle(chart, model, how))
        rate = tokens(model, gpus, **how)
        compute, away = step(model, gpus, **how)
        frames.append({
            "title": f"{gpus} GPUs: each {rate:,.0f} tokens/s, {rate / first:.0%} of those on {GPUS[0]}",
            "note": f"A step takes {compute:.2f} s of computing and {away:.2f} s of communication that is not hidden. "
                    f"All GPUs together: {gpus * rate / 1e6:.2f} million tokens/s.",
            "shapes": shapes,
        })
    return {"size": (560, 440), "pace": 1300, "frames": frames}


def _legend(chart, first):
    """What colours mean, and the line at an efficiency of 80 %."""
    yield from key("computing", LEFT, KEYS, **doing("compute"))
    yield from key("sending, in % of a step", LEFT + 110, KEYS, **doing("communication"))
    yield from key("published", LEFT + 325, KEYS, **DOT, round=7)
    y = chart.y(0.8 * first)
    ends = [[chart.left, y], [chart.left + chart.width, y]]
    yield path("wanted", ends, line=WANTED, width=2.5, dash=True, layer=1)
    yield from key("80 % of what each of 8 GPUs does", LEFT, KEYS + 24, fill=WANTED)


def _names(model, batch):
    """What stands below the columns."""
    yield from _row("GPUs", 0, {gpus: str(gpus) for gpus in GPUS})
    yield from _row("texts each", 20, {gpus: f"{batch // gpus:,}" for gpus in GPUS})
    if published(model):
        missed = {gpus: f"{error:+.1%}" for gpus, error in errors(model).items()}
        yield from _row("error", 40, {GPUS[0]: "fitted"} | missed)


def _row(name, below, texts):
    """Its name, and a text for each number of GPUs."""
    y = ROWS + below
    yield words(f"row {name}", LEFT - 8, y, name, "end", size=14)
    for gpus, text in texts.items():
        yield words(f"{name} {gpus}", _middle(gpus), y, text, "middle", size=14)


def _middle(gpus):
    """Of a column."""
    return LEFT + COLUMN * (GPUS.index(gpus) + 0.5)


def _column(chart, ideal, model, gpus, how):
    """Its lower part is the share of a step that a GPU computes; above it, what is lost to communication."""
    compute, away = step(model, gpus, **how)
    hidden = communication(model, gpus, how["faster"]) - away
    middle, x = _middle(gpus), _middle(gpus) - WIDE / 2
    highest, bottom = chart.y(ideal), chart.y(0)
    computed = compute / (compute + away)
    high = (bottom - highest) * computed
    top = bottom - high
    yield box(f"computes {gpus}", x, top, WIDE, high, round=0, **doing("compute"))
    yield box(f"sends {gpus}", x, highest, WIDE, top - highest, round=0, **doing("communication"))
    # The narrow part within is communication that computing hides.
    yield box(f"hidden {gpus}", x + WIDE - 12, top, 12, high * hidden / compute, round=0, **doing("communication"))
    yield words(f"lost {gpus}", middle, highest - 16, f"{1 - computed:.0%}", "middle", size=14)
    real = published(model).get(gpus)
    if real:
        yield circle(f"published {gpus}", middle, chart.y(real), 6, layer=1, **DOT)


def _handle(chart, model, how):
    """The top of the last column can be dragged: a faster network raises it."""
    last = GPUS[-1]
    x = _middle(last) - WIDE / 2 - 6
    places = {}
    for faster in BANDWIDTHS.values():
        rate = tokens(model, last, **how | {"faster": faster})
        places[faster] = [x, chart.y(rate) - 7]
    return box(
        "handle", *places[how["faster"]], WIDE + 12, 14, **DOT,
        text="↕",
        size=13,
        layer=1,
        tip="drag: the network's bandwidth",
        drag=("bandwidth", list(places.values())),
    )


def scaling_explorer():
    """Scaling explorer: choose the model, the bandwidth, the overlap and the batch. The picture shows the tokens per
    second of each GPU on 8 to 256 GPUs beside published rows, and the share of a step that is communication. The
    model's errors stand below."""
    controls = {
        "model": buttons("Model", MODELS[0], MODELS),
        "bandwidth": slider("Bandwidth", 1, BANDWIDTHS.items()),
        "overlap": slider("Overlap, %", 0, (*range(0, 61, 10), 65)),
        "batch": slider("Texts in a step", BATCH, [BATCH * 2**power for power in range(5)]),
    }
    presets = {
        "slow network": preset("From how many GPUs on does most of a step go into communication?", frame=-1,
                               bandwidth=0.25),
        "with overlap": preset("Where does the red part vanish, and where does it only shrink?", frame=-1, overlap=65),
        "a larger batch": preset("Nothing is sent faster. Why does each GPU do more?", frame=-1, batch=16 * BATCH),
    }
    return Stage(
        "scaling_explorer", scaling_explorer.__doc__, scene, controls,
        look="Press Play: twice the GPUs, and twice again. What does each of them do in a second?",
        presets=presets,
    )
