"""The scaling explorer: tokens per second by GPUs, against published rows, and what a step's time goes into.

The model is data parallelism of a fixed batch, as in table A of data/records/published_scaling.json:
computing shrinks with the GPUs, an all-reduce of float32 gradients is added at the bandwidth published for
that many GPUs. Its errors against the published rows stand below, whatever the sliders say: they are those of
the published setting.
"""

from matplotlib.figure import Figure

from helpers.instruments import costs
from helpers.widgets.explorer import Explorer, buttons, choice, slider, wipe

_A = costs.published()["A"]
BATCH, LENGTH = _A["batch"], _A["length"]
ALL_REDUCE = {int(gpus): 1e9 * gb for gpus, gb in _A["all_reduce"].items()}
GPUS = tuple(gpus for gpus in ALL_REDUCE if gpus <= BATCH)  # one text for each GPU at least
PUBLISHED = {"1.34B": "1.34B ZeRO-0", "3.57B": "3.57B ZeRO-1"}
MODELS = ("1.34B", "3.57B", "8.86B")
BANDWIDTHS = {"¼ ×": 0.25, "½ ×": 0.5, "1 × published": 1, "2 ×": 2, "4 ×": 4, "8 ×": 8}


def shape(model):
    """The `Shape` of one of MODELS."""
    return costs.Shape(**_A["shapes_inferred"][model], vocabulary=_A["vocabulary_inferred"])


def published(model):
    """{GPUs: tokens/s of each GPU}, published; empty where there is no row."""
    row = _A["tokens"].get(PUBLISHED.get(model), {})
    return {int(gpus): tokens for gpus, tokens in row.items()}


def communication(model, gpus, faster=1.0):
    """Seconds of the all-reduce of a step, the network `faster` times as fast as the published one."""
    return 2 * (gpus - 1) / gpus * 4 * shape(model).parameters / (faster * costs.bandwidth(ALL_REDUCE, gpus))


def computing(model, batch=BATCH):
    """Seconds that one GPU would compute for a step of `batch` texts: from the published row of 8 GPUs.

    Without such a row, from the FLOP/s of 3.57B.
    """
    known = model if published(model) else "3.57B"
    whole = 8 * (BATCH * LENGTH / (8 * published(known)[8]) - communication(known, 8))
    return whole * batch / BATCH * shape(model).flops(LENGTH) / shape(known).flops(LENGTH)


def step(model, gpus, faster=1.0, overlap=0.0, batch=BATCH):
    """Seconds of a step: (computing, communication that computing does not hide).

    overlap: the share of computing, 0 to 1, behind which communication can hide. Gradients exist in backward
        only, which is two thirds of it: the slider ends at 65 %.
    """
    compute = computing(model, batch) / gpus
    return compute, max(0.0, communication(model, gpus, faster) - overlap * compute)


def tokens(model, gpus, batch=BATCH, **how):
    """Tokens per second of each GPU; `how` as for `step`."""
    return batch * LENGTH / gpus / sum(step(model, gpus, batch=batch, **how))


def errors(model):
    """{GPUs: predicted/published − 1} at the published setting; the first row, which is fitted, left out."""
    return {gpus: tokens(model, gpus) / real - 1 for gpus, real in published(model).items() if gpus > 8}


def scaling_explorer():
    """Scaling explorer: set the model, the bandwidth, the overlap and the batch; the picture shows tokens per
    second of each GPU on 8 to 256, beside published rows, and the share of a step that waits for the network.
    The model's errors stand below."""
    controls = {
        "model": buttons("Model", MODELS),
        "bandwidth": choice("Bandwidth", 1, list(BANDWIDTHS.items())),
        "overlap": slider("Overlap, % of computing", 0, 0, 65, 5),
        "batch": choice("Texts a step", BATCH, [BATCH * 2**power for power in range(5)]),
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
        busy = [100 * compute / (compute + wait) for compute, wait in steps]
        wipe(left, right)
        left.plot(names, rates, color="C0", label="model, as set")
        if real:
            left.plot(list(map(str, real)), list(real.values()), "ko", label="published, as it was")
        left.set_ylim(0, 1.15 * max(*rates, *real.values()))
        left.legend(loc="lower left")
        right.bar(names, busy, color="C0", label="computing")
        idle = [100 - share for share in busy]
        right.bar(names, idle, bottom=busy, color="C1", label="waiting for the network")
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        said = "No published row: nothing to hold it against"
        if real:
            missed = ", ".join(f"{gpus}: {miss:+.1%}" for gpus, miss in errors(model).items())
            said = f"Errors at the published setting: {missed}"
        note.set_text(said)
        left.set_title(f"Tokens/s of each GPU: {rates[-1] / rates[0]:.0%} left on {GPUS[-1]}")
        each = ", ".join(f"{rate:,.0f} on {gpus}" for gpus, rate in zip(GPUS, rates, strict=True))
        times = GPUS[-1] * rates[-1] / (GPUS[0] * rates[0])
        figure.set_label(f"{model}, network {bandwidth:g} times as fast, {overlap} % of computing can hide "
                         f"communication, {batch} texts a step. Tokens/s of each GPU: {each}; {times:.1f} "
                         f"times as many in all on {GPUS[-1]} as on {GPUS[0]}. {said}.")
        return figure

    return Explorer(controls, redraw, scaling_explorer.__doc__)
