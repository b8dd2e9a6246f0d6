"""The scaling explorer: tokens per second by GPUs, against published rows, and what a step's time goes into.

The model is data parallelism of a fixed batch, as in table A of data/records/published_scaling.json: computing shrinks
with the GPUs, an all-reduce of float32 gradients is added at the bandwidth published for that many GPUs. Its errors
against the published rows are drawn, whatever the sliders say: they are those of the published setting.
"""

from matplotlib.figure import Figure

from helpers.instruments import costs
from helpers.widgets.explorer import Explorer, widgets

_A = costs.published()["A"]
BATCH, LENGTH = _A["batch"], _A["length"]
ALL_REDUCE = {int(gpus): 1e9 * gb for gpus, gb in _A["all_reduce"].items()}
GPUS = tuple(gpus for gpus in ALL_REDUCE if gpus <= BATCH)  # one text for each GPU at least
PUBLISHED = {"1.34B": "1.34B ZeRO-0", "3.57B": "3.57B ZeRO-1"}
MODELS = ("1.34B", "3.57B", "8.86B")


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

    overlap: the share of computing, 0 to 1, behind which communication can hide. Gradients exist in backward only,
        which is two thirds of it: the slider ends at 65 %.
    """
    compute = computing(model, batch) / gpus
    return compute, max(0.0, communication(model, gpus, faster) - overlap * compute)


def tokens(model, gpus, **how):
    """Tokens per second of each GPU; `how` as for `step`."""
    return how.get("batch", BATCH) * LENGTH / gpus / sum(step(model, gpus, **how))


def errors(model):
    """{GPUs: predicted/published − 1} at the published setting; the first row, which is fitted, left out."""
    return {gpus: tokens(model, gpus) / real - 1 for gpus, real in published(model).items() if gpus > 8}


class _Chart:
    """One figure, whose lines and bars are moved."""

    def __init__(self):
        self.figure = Figure(figsize=(10, 4), layout="constrained")
        self.left, self.right = self.figure.subplots(1, 2, width_ratios=(3, 2))
        places, names = range(len(GPUS)), [str(gpus) for gpus in GPUS]
        (self.line,) = self.left.plot(places, [0] * len(GPUS), label="model, as set")
        (self.points,) = self.left.plot([], [], "o", color="black", label="published, as it was")
        self.left.set(title="Tokens/s of each GPU", xlabel="GPUs", ylabel="tokens/s")
        self.left.set_xticks(places, names)
        self.legend = self.left.legend(loc="lower left")
        self.compute = self.right.bar(places, [0] * len(GPUS), label="computing")
        self.wait = self.right.bar(places, [0] * len(GPUS), label="waiting for the network")
        self.right.set(title="Where a step's time goes", xlabel="GPUs", ylabel="% of the step", ylim=(0, 100))
        self.right.set_xticks(places, names)
        self.right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        self.note = self.figure.text(0.01, 0.01, " ", fontsize=11)
        self.figure.get_layout_engine().set(rect=(0, 0.06, 1, 0.94))
        self.left.set_ylim(0, 50000)
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")  # laid out once, for that is slow

    def draw(self, model, bandwidth, overlap, batch):
        how = {"faster": bandwidth, "overlap": overlap / 100, "batch": batch}
        rates = [tokens(model, gpus, **how) for gpus in GPUS]
        real, missed = published(model), errors(model)
        self.line.set_ydata(rates)
        self.points.set_data([GPUS.index(gpus) for gpus in real], list(real.values()))
        for part in self.legend.legend_handles[1], self.legend.get_texts()[1]:
            part.set_visible(bool(real))
        self.left.set_ylim(0, 1.15 * max(*rates, *real.values(), 1))
        for gpus, compute, wait in zip(GPUS, self.compute, self.wait, strict=True):
            busy, idle = step(model, gpus, **how)
            compute.set_height(100 * busy / (busy + idle))
            wait.set_y(100 * busy / (busy + idle))
            wait.set_height(100 * idle / (busy + idle))
        said = ", ".join(f"{gpus}: {miss:+.1%}" for gpus, miss in missed.items())
        said = f"Errors at the published setting: {said}" if said else "No published row: nothing to hold it against"
        self.note.set_text(said)
        total = [gpus * rate for gpus, rate in zip(GPUS, rates, strict=True)]
        self.left.set_title(f"Tokens/s of each GPU: {rates[-1] / rates[0]:.0%} left on {GPUS[-1]}")
        self.figure.set_label(f"{model}, network {bandwidth:g} times as fast, {overlap} % of computing can hide "
                              f"communication, {batch} texts a step. Tokens/s of each GPU: "
                              + ", ".join(f"{rate:,.0f} on {gpus}" for gpus, rate in zip(GPUS, rates, strict=True))
                              + f"; {total[-1] / total[0]:.1f} times as many in all on {GPUS[-1]} as on {GPUS[0]}. "
                              + said + ".")
        return self.figure


def scaling_explorer():
    """Set model, bandwidth, overlap and batch: tokens/s of each GPU by their number, and where the time goes."""
    wide = {"style": {"description_width": "10em"}, "layout": {"width": "32em"}}
    controls = {
        "model": widgets.ToggleButtons(options=list(MODELS), description="Model",
                                       style={"description_width": "10em"}),
        "bandwidth": widgets.SelectionSlider(options=[("¼ ×", 0.25), ("½ ×", 0.5), ("1 × published", 1), ("2 ×", 2),
                                                      ("4 ×", 4), ("8 ×", 8)], value=1, description="Bandwidth",
                                             **wide),
        "overlap": widgets.IntSlider(0, 0, 65, 5, description="Overlap, % of computing", **wide),
        "batch": widgets.SelectionSlider(options=[BATCH * 2**power for power in range(5)], value=BATCH,
                                         description="Texts a step", **wide),
    }
    return Explorer(controls, _Chart().draw, "Scaling explorer: set the model, the bandwidth, the overlap and the "
                    "batch; the picture shows tokens per second of each GPU on 8 to 256, beside published rows, and "
                    "the share of a step that waits for the network. The model's errors stand below.")
