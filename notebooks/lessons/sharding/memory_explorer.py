"""The memory calculator: what each rank holds while it trains a GPT, and what it sends, by stage of ZeRO."""

import ipywidgets as widgets
from matplotlib.figure import Figure

from helpers.figures import HELD
from helpers.instruments.costs import STAGES, activations, block_parameters, parameters, states
from helpers.widgets.explorer import LOOK, Explorer, checkbox, choice, slider, wipe

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

#: By moment of a step: the shares that are held of the gradients, the gathered parameters, the activations.
#: Activations come and go evenly here, as the gradients come.
MOMENTS = {
    "what each holds at most": (1, 1, 1),
    "what each holds between two steps": (0, 0, 0),
    "half-way through forward": (0, 1, 0.5),
    "where backward begins": (0, 1, 1),
    "half-way through backward": (0.5, 1, 0.5),
    "when backward has ended": (1, 0, 0),
}


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


def memory_explorer():
    """Memory calculator: choose a model, the ranks, the batch and checkpointing; the bars show what each rank
    holds under DDP and under each stage of ZeRO, and beside them stands what it sends in a step."""
    controls = {
        "model": widgets.Dropdown(options=list(MODELS), index=1, description="Model", **LOOK),
        "ranks": choice("Ranks", 8, [2**power for power in range(11)]),
        "batch": slider("Batch of a rank", 4, 1, 32),
        "checkpointing": checkbox("Activation checkpointing"),
        "moment": slider("Moment of a step", 0, 0, len(MOMENTS) - 1),
    }
    presets = {
        "through a step": ({"moment": 1}, "Press Play. When is most held, and which colour is it?"),
        "one rank": ({"ranks": 1}, "With one rank, what does each stage of ZeRO save?"),
        "many ranks": ({"ranks": 256}, "Which colours shrink with more ranks, and which one does not?"),
        "checkpointing": ({"checkpointing": True}, "Which colour shrinks? What is paid for it?"),
    }
    figure = Figure(figsize=(9, 3.4), layout="none")
    ax = figure.add_axes((0.16, 0.29, 0.82, 0.61))

    def redraw(moment, **values):
        found, lefts = held(**values), [0.0] * len(STAGES)
        when, shares = list(MOMENTS.items())[moment]
        shares = dict(zip(("gradients", "gathered", "activations"), shares, strict=True))
        wipe(ax)
        ax.axvline(GPU_GIB, color="black", linestyle="--", label=f"{GPU_GIB} GiB")
        for kind in KINDS:
            widths = [shares.get(kind, 1) * found[stage][kind] / GIB for stage in STAGES]
            bars = ax.barh(STAGES, widths, left=lefts, color=COLOURS[kind], label=kind)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        sizes = [f"{total:,.1f}{': too much' if total > GPU_GIB else ''}" for total in lefts]
        ax.bar_label(bars, sizes, padding=4)
        traffic = sent(values["model"], values["ranks"])
        ax.set_yticks(range(len(STAGES)),
                      [f"{stage}\nsends {traffic[stage] / GIB:,.1f} GiB" for stage in STAGES])
        most = max(sum(kinds.values()) / GIB for kinds in found.values())  # one scale for all moments
        ax.set(xlim=(0, 1.25 * max(most, GPU_GIB)), ylim=(3.5, -0.5), xlabel="GiB")
        setting = f"{values['model']} on {values['ranks']} ranks"
        ax.set_title(f"{setting}: {when}")
        ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.26), ncols=6,
                  columnspacing=1, handlelength=1.2)
        said = ", ".join(f"{stage} {total:,.1f} (sends {traffic[stage] / GIB:,.1f})"
                         for stage, total in zip(STAGES, lefts, strict=True))
        figure.set_label(f"{setting}, in GiB, {when}, and what it sends in a step: {said}; "
                         f"a GPU has {GPU_GIB}.")
        return figure

    return Explorer(controls, redraw, memory_explorer.__doc__,
                    "The dashed line is one GPU. Which bars end before it?", presets, "moment")
