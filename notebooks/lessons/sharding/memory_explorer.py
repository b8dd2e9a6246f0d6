"""The memory calculator: what each rank holds while it trains a GPT, by stage of ZeRO.

The model is that of `helpers.instruments.costs`. It leaves out the allocator's gaps, the CUDA context and the buffers
of collectives.
"""

from matplotlib.figure import Figure

from helpers.instruments.costs import STAGES, activations, block_parameters, parameters, states
from helpers.widgets.explorer import Explorer, widgets

GIB = 2**30
GPU_GIB = 80

#: Shapes of published models, built as `helpers.models.GPT`: width, layers, heads, vocabulary, length.
MODELS = {
    "GPT-2, 0.1 billion": (768, 12, 12, 50257, 1024),
    "GPT-2 XL, 1.6 billion": (1600, 48, 25, 50257, 1024),
    "GPT-3's shape, 6.7 billion": (4096, 32, 32, 50257, 2048),
    "GPT-3's shape, 175 billion": (12288, 96, 96, 50257, 2048),
}


def held(model, ranks, batch, checkpointing):
    """Bytes by stage and kind of one of MODELS; `batch` is one rank's."""
    width, layers, heads, vocabulary, length = MODELS[model]
    total = parameters(width, layers, vocabulary, length)
    kept = activations(width, layers, heads, vocabulary, length, batch, checkpointing)
    gathered = 4 * max(block_parameters(width), vocabulary * (width + 1))
    return {stage: {**states(total, ranks, stage), "gathered": gathered * (stage == "ZeRO-3"), "activations": kept}
            for stage in STAGES}


def memory_explorer():
    """Choose a model, ranks, batch and checkpointing: the bars show what a rank holds at each stage of ZeRO."""
    wide = {"style": {"description_width": "8em"}, "layout": {"width": "30em"}}
    controls = {
        "model": widgets.Dropdown(options=list(MODELS), value="GPT-2 XL, 1.6 billion", description="Model",
                                  style={"description_width": "8em"}),
        "ranks": widgets.SelectionSlider(options=[2**power for power in range(11)], value=8, description="Ranks",
                                         **wide),
        "batch": widgets.IntSlider(4, 1, 32, description="Batch of a rank", **wide),
        "checkpointing": widgets.Checkbox(False, description="Activation checkpointing", indent=False),
    }
    figure = Figure(figsize=(9, 2.9))  # whose bars are moved
    ax = figure.add_subplot()
    bars_of = {kind: ax.barh(STAGES, [0] * 4, label=kind)
               for kind in ("parameters", "gathered", "gradients", "optimizer", "activations")}
    ax.invert_yaxis()
    ax.axvline(GPU_GIB, color="black", linestyle="--", label=f"{GPU_GIB} GiB")
    ax.set(title=" ", xlabel="GiB")  # its words change, its place does not
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    totals = [ax.text(0, row, "", va="center") for row in range(4)]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for that is slow

    def redraw(**values):
        found, lefts = held(**values), [0.0] * 4
        for kind, bars in bars_of.items():
            for row, (bar, stage) in enumerate(zip(bars, STAGES, strict=True)):
                bar.set_x(lefts[row])
                bar.set_width(found[stage][kind] / GIB)
                lefts[row] += bar.get_width()
        ax.set_xlim(0, 1.2 * max(*lefts, GPU_GIB))
        ax.set_title(f"{values['model']} on {values['ranks']} ranks: what each holds at most")
        for text, total in zip(totals, lefts, strict=True):
            text.set_x(total)
            text.set_text(f" {total:,.1f}" + ("" if total <= GPU_GIB else ": too much"))
        said = ", ".join(f"{stage} {total:,.1f}" for stage, total in zip(STAGES, lefts, strict=True))
        figure.set_label(f"What each rank holds at most, in GiB, of {values['model']} on {values['ranks']} ranks: "
                         f"{said}; a GPU has {GPU_GIB}.")
        return figure

    return Explorer(controls, redraw, "Memory calculator: choose a model, the ranks, the batch and "
                    "checkpointing; the bars show what each rank holds under DDP and under each stage of ZeRO.")
