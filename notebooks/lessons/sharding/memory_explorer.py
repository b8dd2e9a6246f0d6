"""The memory calculator: what each rank holds while it trains a GPT, and what it sends, by stage of ZeRO."""

from helpers.figures import HELD
from helpers.instruments.costs import STAGES, activations, block_parameters, parameters, states
from helpers.widgets.shapes import Chart, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, checkbox, preset, slider
from helpers.widgets.still import ticks

GIB = 2**30
GPU_GIB = 80
COLOURS = HELD | {"parameters": HELD["weights"]}
KINDS = "parameters", "gathered", "gradients", "optimizer", "activations"
COLLECTIVES = {"DDP": 2, "ZeRO-1": 2, "ZeRO-2": 2, "ZeRO-3": 3}
"""By stage: how often all parameters, or as many gradients, pass through a gather or a reduce-scatter."""

#: Shapes of published models, built as `helpers.models.GPT`: width, layers, heads, vocabulary, length.
MODELS = {
    "GPT-2, 0.1 billion": (768, 12, 12, 50257, 1024),
    "GPT-2 XL, 1.6 billion": (1600, 48, 25, 50257, 1024),
    "GPT-3's shape, 6.7 billion": (4096, 32, 32, 50257, 2048),
    "GPT-3's shape, 175 billion": (12288, 96, 96, 50257, 2048),
}

#: By moment of a step: the shares that are held of the gradients, the gathered parameters, the activations; how many
#: of their collectives the stages have done; and what happens. Activations come and go evenly here, as gradients come.
MOMENTS = {
    "Between two steps": ((0, 0, 0), (0, 0, 0, 0), "Each rank holds its parameters and its optimizer's states."),
    "Half-way through forward": (
        (0, 1, 0.5), (0, 0, 0, 0.5),
        "Layers keep activations for backward. ZeRO-3 gathers each block's parameters before the block computes."),
    "Backward begins": ((0, 1, 1), (0, 0, 0, 1), "All layers have kept their activations."),
    "Half-way through backward": (
        (0.5, 1, 0.5), (1, 0, 0.5, 2),
        "Half of the layers have gradients, and have freed their activations. Only ZeRO-1 waits to send gradients."),
    "Backward has ended": ((1, 0, 0), (2, 1, 1, 3), "Each rank holds the averaged gradients that its stage keeps."),
    "The optimizer has stepped": (
        (0, 0, 0), (2, 2, 2, 3),
        "Gradients are freed. In ZeRO-1 and ZeRO-2, ranks have sent each other the parameters that they updated."),
    "The most of each kind, added up": ((1, 1, 1), (2, 2, 2, 3), "A rank never needs more than this in a step."),
}
LEFT, WIDE = 76, 380
TOP, ROW = 34, 78


def held(model, ranks, batch, checkpointing):
    """Bytes by stage and kind of one of MODELS; `batch` is one rank's."""
    width, layers, heads, vocabulary, length = MODELS[model]
    total = parameters(width, layers, vocabulary, length)
    kept = activations(width, layers, heads, vocabulary, length, batch, checkpointing)
    kept += 2 * 4 * batch * length * vocabulary  # where backward begins: two gradients as large as the scores
    found = {stage: states(total, ranks, stage) | {"gathered": 0, "activations": kept} for stage in STAGES}
    found["ZeRO-3"]["gathered"] = 4 * max(block_parameters(width), vocabulary * (width + 1))
    return found


def sent(model, ranks):
    """Bytes that a rank sends in a step, by stage."""
    width, layers, _, vocabulary, length = MODELS[model]
    return {stage: count * (ranks - 1) / ranks * 4 * parameters(width, layers, vocabulary, length)
            for stage, count in COLLECTIVES.items()}


def scene(model, ranks, batch, checkpointing):
    """The moments of a step; in each, a bar for each stage, of what a rank holds, and one of what it has sent."""
    found, traffic = held(model, ranks, batch, checkpointing), sent(model, ranks)
    most = 1.1 * max(GPU_GIB, *(sum(kinds.values()) / GIB for kinds in found.values()))  # one scale for all moments
    marks = {number: f"{number:,g}" for number in ticks(0, most, 5)}
    chart = Chart("chart", LEFT, TOP, WIDE, ROW * len(STAGES), (0, most), (0, 1), marks, {}, "GiB")
    frames = []
    for moment, (shares, done, note) in MOMENTS.items():
        shares = dict(zip(("gradients", "gathered", "activations"), shares, strict=True))
        shapes, said = [*chart.axes(), *_gpu(chart), *_legend()], []
        for row, stage in enumerate(STAGES):
            sizes = {kind: shares.get(kind, 1) * found[stage][kind] / GIB for kind in KINDS}
            away = traffic[stage] / GIB * done[row] / COLLECTIVES[stage]
            shapes += [*_memory(chart, row, sizes, checkpointing), *_sent(chart, row, away)]
            said.append(f"{stage} {sum(sizes.values()):,.1f} (sent {away:,.1f})")
        frames.append({"title": moment, "note": note, "shapes": shapes,
                       "alt": f"{moment}. GiB held: {', '.join(said)}."})
    return {"size": (560, 440), "pace": 1500, "frames": frames}


def _gpu(chart):
    """The line where a GPU is full; and each stage's GPU, to be filled."""
    x = chart.x(GPU_GIB)
    yield path("full", [[x, TOP - 4], [x, TOP + ROW * len(STAGES)]], width=2, dash=True, layer=-1)
    place = "end" if x > LEFT + WIDE / 2 else "start"
    yield words("gpu", x, TOP - 16, f"one GPU: {GPU_GIB} GiB", place, size=14)
    for row, stage in enumerate(STAGES):
        y = TOP + ROW * row + 12
        yield words(f"stage {row}", LEFT - 8, y + 17, stage, "end", bold=True, size=14)
        yield words(f"sends {row}", LEFT - 8, y + 46, "sent", "end", size=13)
        yield box(f"gpu {row}", LEFT, y, x - LEFT, 34, layer=-1)


def _memory(chart, row, sizes, checkpointing):
    """What a rank holds, kind after kind. A click on its activations keeps fewer of them, or all again."""
    y, end = TOP + ROW * row + 12, 0
    for kind, size in sizes.items():
        x, wide = chart.x(end), chart.x(size) - LEFT
        more = {"click": {"checkpointing": not checkpointing}} if kind == "activations" else {}
        if size:
            more["tip"] = f"{kind}: {size:,.1f} GiB"
        if wide > 7.2 * len(kind) + 6:
            more["text"] = kind
        yield box(f"{kind} {row}", x, y, wide, 34, fill=COLOURS[kind], round=0, size=13, **more)
        end += size
    yield words(f"total {row}", LEFT + WIDE + 8, y + (8 if end > GPU_GIB else 17), f"{end:,.1f} GiB", size=14)
    if end > GPU_GIB:
        yield words(f"too much {row}", LEFT + WIDE + 8, y + 26, "too much", bold=True, size=14)


def _sent(chart, row, away):
    y = TOP + ROW * row + 52
    yield box(f"sent {row}", LEFT, y, chart.x(away) - LEFT, 12, round=0, **doing("communication"))
    yield words(f"away {row}", LEFT + WIDE + 8, y + 6, f"{away:,.1f} GiB", size=13)


def _legend():
    """The colours' names, three in a row."""
    for number, kind in enumerate(KINDS):
        x, y = LEFT + 160 * (number % 3), TOP + ROW * len(STAGES) + 52 + 22 * (number // 3)
        yield box(f"colour {kind}", x, y, 14, 14, fill=COLOURS[kind])
        yield words(f"kind {kind}", x + 20, y + 7, kind, size=14)


def memory_explorer():
    """Memory calculator: choose a model, the ranks, the batch and checkpointing; the bars show what each rank
    holds under DDP and under each stage of ZeRO, moment after moment of a step, and what it has sent."""
    controls = {
        "model": buttons("Model", "GPT-2 XL, 1.6 billion", MODELS),
        "ranks": slider("Ranks", 8, [2**power for power in range(11)]),
        "batch": slider("Batch of a rank", 4, [2**power for power in range(6)]),
        "checkpointing": checkbox("Activation checkpointing"),
    }
    presets = {
        "through a step": preset("Press Play. When is most held, and which colour is it?"),
        "one rank": preset("With one rank, what does each stage of ZeRO save?", frame=-1, ranks=1),
        "many ranks": preset("Which colours shrink with more ranks, and which one does not?", frame=-1, ranks=256),
        "checkpointing": preset("Which colour shrinks? What is paid for it?", frame=-1, checkpointing=True),
    }
    return Stage("memory_explorer", memory_explorer.__doc__, scene, controls,
                 "The dashed line is one GPU. Which bars end before it?", presets, frame=-1)
