"""The memory calculator: bars that grow and shrink while a GPT is trained, one for each stage of ZeRO.

They show what a rank holds from moment to moment of a step, and how much it has sent so far.
"""

from typing import NamedTuple

from helpers.figures import HELD
from helpers.instruments.costs import STAGES, activations, block_parameters, parameters, states
from helpers.widgets.shapes import Chart, box, doing, key, path, ticks, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset, slider

GIB = 2**30
GPU_GIB = 80
KINDS = "parameters", "bucket", "gathered", "gradients", "optimizer", "activations"
LOOKS = {kind: {"fill": HELD[kind]} for kind in KINDS if kind in HELD} | {
    "parameters": {"fill": HELD["weights"]},
    "bucket": {"fill": HELD["gradients"], "hatch": "..."},  # copies of the gradients
}
#: By stage: how often all parameters, or as many gradients, pass through a gather or a reduce-scatter.
COLLECTIVES = {"DDP": 2, "ZeRO-1": 2, "ZeRO-2": 2, "ZeRO-3": 3}

#: Shapes of published models, built as `helpers.models.GPT`: width, layers, heads, vocabulary, length.
MODELS = {
    "GPT-2, 0.1 billion": (768, 12, 12, 50257, 1024),
    "GPT-2 XL, 1.6 billion": (1600, 48, 25, 50257, 1024),
    "GPT-3's shape, 6.7 billion": (4096, 32, 32, 50257, 2048),
    "GPT-3's shape, 175 billion": (12288, 96, 96, 50257, 2048),
}


class Moment(NamedTuple):
    """A moment of a step."""

    title: str
    note: str
    done: tuple  # by stage: how many of its collectives it has done
    gathered: float = 0  # the shares that are held of what comes and goes
    gradients: float = 0
    activations: float = 0  # as evenly as gradients come, here

    def share(self, kind):
        """What share is held of a kind; parameters, the bucket and the optimizer's states stay."""
        return getattr(self, kind, 1)


MOMENTS = (
    Moment("Between two steps", "Ranks hold parameters and optimizer's states; DDP its bucket, too.", (0, 0, 0, 0)),
    Moment("Half-way through forward",
           "Layers keep activations for backward. ZeRO-3 gathers each block's parameters.",
           (0, 0, 0, 0.5), gathered=1, activations=0.5),
    Moment("Backward begins", "All layers have kept their activations.", (0, 0, 0, 1), gathered=1, activations=1),
    Moment("Half-way through backward",
           "Half of the layers have freed their activations. Only ZeRO-1 waits to send gradients.",
           (1, 0, 0.5, 2), gathered=1, gradients=0.5, activations=0.5),
    Moment("Backward has ended", "Each rank holds the averaged gradients that its stage keeps.",
           (2, 1, 1, 3), gradients=1),
    Moment("The optimizer has stepped",
           "Gradients are freed. In ZeRO-1 and ZeRO-2, ranks have sent each other what they updated.",
           (2, 2, 2, 3)),
    Moment("The most of each kind, added up", "A rank never holds more of these kinds in a step.",
           (2, 2, 2, 3), gathered=1, gradients=1, activations=1),
)
LEFT, WIDE = 76, 380
RIGHT = LEFT + WIDE + 8  #: where the numbers beside the bars begin
TOP, ROW = 34, 78  #: where the first stage begins, and how far it is to the next one
HIGH = 34  #: of a bar


def held(model, ranks, batch, checkpointing):
    """Bytes by stage and kind, of those that it has, of one of MODELS; `batch` is one rank's."""
    width, layers, heads, vocabulary, length = MODELS[model]
    total = parameters(width, layers, vocabulary, length)
    kept = activations(width, layers, heads, vocabulary, length, batch, checkpointing)
    # Where backward begins, there are two gradients as large as the scores.
    kept += 2 * 4 * batch * length * vocabulary
    found = {}
    for stage in STAGES:
        found[stage] = states(total, ranks, stage) | {"activations": kept}
    found["DDP"]["bucket"] = found["DDP"]["gradients"]  # without `gradient_as_bucket_view`, as by default
    found["ZeRO-3"]["gathered"] = 4 * max(block_parameters(width), vocabulary * (width + 1))
    return found


def sent(model, ranks):
    """Bytes that a rank sends in a step, by stage."""
    width, layers, _, vocabulary, length = MODELS[model]
    once = (ranks - 1) / ranks * 4 * parameters(width, layers, vocabulary, length)
    return {stage: count * once for stage, count in COLLECTIVES.items()}


def scene(model, ranks, batch, checkpointing):
    """The moments of a step; in each, a bar for each stage, of what a rank holds, and one of what it has sent."""
    found = held(model, ranks, batch, checkpointing)
    whole = sent(model, ranks)
    # One scale for all moments, so that bars can be compared.
    most = 1.1 * max(GPU_GIB, *(sum(kinds.values()) / GIB for kinds in found.values()))
    marks = {number: f"{number:,g}" for number in ticks(0, most, 5)}
    chart = Chart("chart", LEFT, TOP, WIDE, ROW * len(STAGES), (0, most), (0, 1), marks, {}, "GiB")
    frames = []
    for moment in MOMENTS:
        shapes = [*chart.axes(), *_gpu(chart), *_legend()]
        alt = "GiB held:"
        for row, stage in enumerate(STAGES):
            sizes = {kind: moment.share(kind) * size / GIB for kind, size in found[stage].items()}
            away = whole[stage] / GIB * moment.done[row] / COLLECTIVES[stage]
            shapes += _stage(chart, row, stage, sizes, away)
            alt += f" {stage} {sum(sizes.values()):,.1f}"
        frames.append({"title": moment.title, "note": moment.note, "alt": alt, "shapes": shapes})
    return {"size": (560, 440), "pace": 1500, "frames": frames}


def _gpu(chart):
    """The line where a GPU is full."""
    x = chart.x(GPU_GIB)
    yield path("full", [[x, TOP - 4], [x, TOP + chart.height]], width=2, dash=True, layer=-1)
    yield words("gpu", x, TOP - 16, f"one GPU: {GPU_GIB} GiB", "middle", size=14)


def _legend():
    """The colours' names, three in a row."""
    for number, kind in enumerate(KINDS):
        x = LEFT + 160 * (number % 3)
        y = 405 + 22 * (number // 3)
        yield from key(kind, x, y, **LOOKS[kind])


def _stage(chart, row, stage, sizes, away):
    """What a rank holds, kind after kind, in a box that is a whole GPU; below it, what the rank has sent."""
    y = TOP + 12 + ROW * row
    yield words(f"stage {row}", LEFT - 8, y + 17, stage, "end", bold=True, size=14)
    yield box(f"gpu {row}", LEFT, y, chart.x(GPU_GIB) - LEFT, HIGH, layer=-1)
    total = 0
    for kind in [kind for kind in KINDS if kind in sizes]:
        wide = chart.x(sizes[kind]) - LEFT
        yield box(f"{kind} {row}", chart.x(total), y, wide, HIGH, round=0, **LOOKS[kind])
        total += sizes[kind]
    yield words(f"total {row}", RIGHT, y + 8, f"{total:,.1f} GiB", size=14)
    if total > GPU_GIB:
        yield words(f"too much {row}", RIGHT, y + 26, "too much", bold=True, size=14)
    y += HIGH + 6
    yield words(f"sends {row}", LEFT - 8, y + 6, "sent", "end", size=13)
    yield box(f"sent {row}", LEFT, y, chart.x(away) - LEFT, 12, round=0, **doing("communication"))
    yield words(f"away {row}", RIGHT, y + 6, f"{away:,.1f} GiB", size=13)


def memory_explorer():
    """Memory calculator: choose a model, the ranks, the batch and checkpointing; the bars show what each rank
    holds under DDP and under each stage of ZeRO, moment after moment of a step, and what it has sent."""
    controls = {
        "model": buttons("Model", "GPT-2 XL, 1.6 billion", MODELS),
        "ranks": slider("Ranks", 8, (1, 2, 4, 8, 16, 64, 256, 1024)),
        "batch": slider("Batch of a rank", 4, (1, 2, 4, 8, 16)),
        "checkpointing": checkbox("Activation checkpointing"),
    }
    presets = {
        "through a step": preset("Press Play. When is most held, and which colour is it?"),
        "one rank": preset("With one rank, what does each stage of ZeRO save?", frame=-1, ranks=1),
        "many ranks": preset("Which colours shrink with more ranks, and which one does not?", frame=-1, ranks=256),
        "checkpointing": preset("Which colour shrinks, and which ones do not?", frame=-1, checkpointing=True),
    }
    return Stage(
        "memory_explorer", memory_explorer.__doc__, scene, controls,
        look="The dashed line is one GPU. Which bars end before it?",
        presets=presets,
        frame=-1,
    )
