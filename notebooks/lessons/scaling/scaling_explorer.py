"""The scaling explorer: tokens per second by GPUs, beside published rows, and what a step's time goes into.

The model is data parallelism with a fixed batch, as in table A of data/records/published_scaling.json.
Computing shrinks with the number of GPUs. An all-reduce of float32 gradients is added, at the bandwidth that
was published for that many GPUs.
"""

from matplotlib.figure import Figure

from helpers.figures import ACTIVITIES, HATCHES
from helpers.instruments import costs
from helpers.widgets.explorer import Explorer, buttons, choice, slider, wipe
from lessons.scaling import planner

_A = planner.published()["A"]
BATCH, LENGTH = _A["batch"], _A["length"]
ALL_REDUCE = {int(gpus): 1e9 * gb for gpus, gb in _A["all_reduce"].items()}
GPUS = tuple(gpus for gpus in ALL_REDUCE if gpus <= BATCH)  # at least one text for each GPU
PUBLISHED = {"1.34B": "1.34B ZeRO-0", "3.57B": "3.57B ZeRO-1"}
MODELS = ("1.34B", "3.57B", "8.86B")
BANDWIDTHS = {"¼ ×": 0.25, "½ ×": 0.5, "1 ×": 1, "2 ×": 2, "4 ×": 4, "8 ×": 8}


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


def scaling_explorer():
    """Scaling explorer: choose the model, the bandwidth, the overlap and the batch. The picture shows the tokens per
    second of each GPU on 8 to 256 GPUs beside published rows, and the share of a step that is communication. The
    model's errors stand below."""
    controls = {
        "model": buttons("Model", MODELS),
        "bandwidth": choice("Bandwidth (1 × as published)", 1, list(BANDWIDTHS.items())),
        "overlap": slider("Overlap, %", 0, 0, 65, 5),
        "batch": choice("Texts in a step", BATCH, [BATCH * 2**power for power in range(5)]),
    }
    names = [str(gpus) for gpus in GPUS]
    figure = Figure(figsize=(10, 4), layout="none")
    left, right = figure.add_axes((0.09, 0.2, 0.49, 0.7)), figure.add_axes((0.65, 0.33, 0.34, 0.57))
    left.set(xlabel="GPUs", ylabel="tokens/s")
    right.set(title="Where a step's time goes", xlabel="GPUs", ylabel="% of the step", ylim=(0, 100))
    note = figure.text(0.01, 0.01, "", fontsize=11)

    def redraw(model, bandwidth, overlap, batch):
        how = {"faster": bandwidth, "overlap": overlap / 100, "batch": batch}
        rates, real = [tokens(model, gpus, **how) for gpus in GPUS], published(model)
        steps = [step(model, gpus, **how) for gpus in GPUS]
        busy = [100 * compute / (compute + sent) for compute, sent in steps]
        wipe(left, right)
        left.plot(names, rates, color="C0", label="model, as set")
        if real:
            left.plot(list(map(str, real)), list(real.values()), "ko", label="published")
        left.set_ylim(0, 1.15 * max(*rates, *real.values()))
        left.legend(loc="lower left")
        for what, shares, below in ("compute", busy, 0), ("communication", [100 - one for one in busy], busy):
            right.bar(names, shares, bottom=below, color=ACTIVITIES[what], hatch=HATCHES[what],
                      edgecolor="white", label=what if what == "compute" else "communication, not hidden")
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        said = "There is no published row to compare with"
        if real:
            missed = ", ".join(f"{gpus}: {miss:+.1%}" for gpus, miss in errors(model).items())
            said = f"Errors at the published setting: {missed}"
        note.set_text(said)
        left.set_title(f"Tokens/s of each GPU: {rates[-1] / rates[0]:.0%} left on {GPUS[-1]}")
        each = ", ".join(f"{rate:,.0f} on {gpus}" for gpus, rate in zip(GPUS, rates, strict=True))
        figure.set_label(f"{model}, network {bandwidth:g} times as fast, {overlap} % of computing can hide "
                         f"communication, {batch} texts in a step. Tokens/s of each GPU: {each}. {said}.")
        return figure

    presets = {
        "slow network": ({"bandwidth": 0.25},
                         "From how many GPUs on does most of a step go into communication?"),
        "with overlap": ({"overlap": 65}, "Where does the red part vanish, and where does it only shrink?"),
        "a larger batch": ({"batch": 16 * BATCH}, "Nothing is sent faster. Why does each GPU do more?"),
    }
    return Explorer(controls, redraw, scaling_explorer.__doc__,
                    "How fast does the curve fall, and what grows at the right meanwhile?", presets)
