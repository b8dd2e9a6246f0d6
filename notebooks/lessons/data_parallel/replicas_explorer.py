"""The DataParallel explorer: which device holds what, and who waits while a step runs.

`memory` and `timeline` are the models; `draw_memory` and `draw_timeline` also draw what its lesson measured.
"""

from functools import partial

import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from helpers.figures import ACTIVITIES
from helpers.widgets.explorer import Explorer, widgets

#: What a device holds, and what it does, each with its colour.
KINDS = {"weights": "C0", "gradients": "C4", "optimizer": "C2", "activations": "C5", "outputs": "C3"}
PHASES = {"scatter": "C4", "replicate": "C1", "forward": "C0", "gather": "C3", "loss": "#b0b0b0", "backward": "#00365c",
          "reduce": "#8a3600", "optimizer": "C2", "waits": ACTIVITIES["waiting"]}

MIB = 2**20
#: What the explorer takes for granted; the picture says so. Bytes per second of a link between two devices:
LINKS = {"PCIe, 12 GB/s": 12e9, "NVLink, 100 GB/s": 100e9}
#: Operations per second that a device does, and bytes per second of its own memory.
SPEED, OWN_MEMORY = 20e12, 1e12
#: Bytes of a sample as it arrives, a colour image of 224×224 in float32, which the first layer keeps; bytes of the
#: other activations per use of the weights.
INPUT, PER_USE = 3 * 224 * 224 * 4, 64 * 1024


def chunk_sizes(batch, n_devices):
    """How many samples each device gets, as `torch.chunk` cuts them; 0 where none are left."""
    each = -(-batch // n_devices)
    return [max(0, min(each, batch - device * each)) for device in range(n_devices)]


def memory(batch, n_devices, weights, activations, output, states=2):
    """By device, what one step puts there: {kind: bytes}, not all of it at the same moment.

    Each device that gets samples holds weights, gradients, and its samples' activations and outputs. Device 0 also
    holds the optimizer's state, the gathered outputs, and what the loss keeps of them (as large once more: the
    log-softmax of a cross-entropy). The batch comes from the CPU's memory.

    Args:
        batch: Samples.
        n_devices: Devices.
        weights: Bytes of the whole model.
        activations, output: Bytes of one sample; the input that the first layer keeps is an activation.
        states: Tensors that the optimizer keeps per weight: SGD 0, with momentum 1, Adam 2.
    """
    held = []
    for samples in chunk_sizes(batch, n_devices):
        used = weights if samples else 0
        held.append({"weights": used, "gradients": used, "optimizer": 0,
                     "activations": samples * activations, "outputs": samples * output})
    held[0]["optimizer"] = states * weights
    held[0]["outputs"] += 2 * batch * output
    return held


def timeline(batch, n_devices, weights, output, uses=1, link=12e9):
    """A step as [(device, phase, begin, end)] in milliseconds: a model without any overhead, all copies in turn.

    Args:
        batch, n_devices, weights, output: As for `memory`.
        uses: How often a sample uses each weight (2 operations forward, 4 backward).
        link: Bytes per second between device 0 and another.
    """
    sizes = chunk_sizes(batch, n_devices)
    others, events, now = range(1, sum(size > 0 for size in sizes)), [], 0.0
    seconds = {"forward": 2 * weights / 4 * uses / SPEED, "backward": 4 * weights / 4 * uses / SPEED}

    def copies(phase, bytes_of):
        nonlocal now
        for device in others:
            end = now + 1000 * bytes_of(sizes[device]) / link
            events.extend([(0, phase, now, end), (device, phase, now, end)])
            now = end

    def side_by_side(phase):
        nonlocal now
        ends = [(device, now + 1000 * samples * seconds[phase]) for device, samples in enumerate(sizes) if samples]
        events.extend((device, phase, now, end) for device, end in ends)
        now = max(end for _, end in ends)

    def on_device_0(phase, bytes_moved):
        nonlocal now
        events.append((0, phase, now, now + 1000 * bytes_moved / OWN_MEMORY))
        now = events[-1][3]

    copies("scatter", lambda samples: samples * INPUT)
    copies("replicate", lambda _: weights)
    side_by_side("forward")
    copies("gather", lambda samples: samples * output)
    on_device_0("loss", 6 * batch * output)
    copies("scatter", lambda samples: samples * output)  # the gradients of the outputs: gather, backwards
    side_by_side("backward")
    copies("reduce", lambda _: weights)
    on_device_0("optimizer", 7 * weights)
    return events


def shares(events):
    """By device, the share of the step, 0 to 1, in which it computes or copies."""
    total, busy = max(end for *_, end in events), {}
    for device, _, begin, end in events:
        busy[device] = busy.get(device, 0) + end - begin
    return {device: time / total for device, time in busy.items()}


def _size(size):
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1000 * MIB else f"{size / MIB:,.0f} MiB"


def _rows(ax, n_devices, colours):
    """One row per device, device 0 on top, and what the colours mean: only what is new is made, which is quicker."""
    for artist in (*ax.collections, *ax.texts):
        artist.remove()
    if ax.get_ylim() != (n_devices - 0.5, -0.5):
        ax.set_yticks(range(n_devices), [f"device {device}" for device in range(n_devices)])
        ax.set_ylim(n_devices - 0.5, -0.5)
    if ax.get_legend() is None:
        _legend(ax, colours)


def _legend(ax, colours):
    return ax.legend(handles=[Patch(color=colour, label=name) for name, colour in colours.items()], labelspacing=0.2,
                     loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1.2, borderpad=0)


def draw_memory(ax, held):
    """Draw what each device holds as a stacked bar.

    Args:
        held: By device, {kind of KINDS: bytes}, from `memory` or counted.
    """
    totals = [sum(kinds.values()) for kinds in held]
    unit, size = ("GiB", 1024 * MIB) if max(totals) >= 1000 * MIB else ("MiB", MIB)
    _rows(ax, len(held), KINDS)
    for device, kinds in enumerate(held):
        begins, bars = 0, []
        for kind in KINDS:
            bars.append((begins / size, kinds.get(kind, 0) / size))
            begins += kinds.get(kind, 0)
        ax.broken_barh(bars, (device - 0.42, 0.84), facecolors=list(KINDS.values()))
        ax.annotate(_size(begins) if begins else "no samples: idle", (begins / size, device), (5, 0),
                    textcoords="offset points", verticalalignment="center")
    ax.set_xlim(0, 1.17 * max(totals) / size)  # room for the number beside the longest bar
    ax.set_xlabel(f"{unit} held")
    words = "; ".join(f"device {device} {_size(total)}" for device, total in enumerate(totals))
    ax.figure.set_label(f"What each device holds: {words}.")


def draw_timeline(ax, events, n_devices):
    """Draw what each device does during a step, and when it waits.

    Args:
        events: [(device, phase of PHASES, begin, end)] in milliseconds.
        n_devices: Rows.
    """
    total, busy = max(end for *_, end in events), shares(events)
    _rows(ax, n_devices, PHASES)
    for device in range(n_devices):
        done = [(begin, end - begin, PHASES[phase]) for of, phase, begin, end in events if of == device]
        ax.broken_barh([(0, total), *(bar[:2] for bar in done)], (device - 0.42, 0.84),
                       facecolors=[PHASES["waits"], *(bar[2] for bar in done)])
    ax.set_xlim(0, total)
    ax.set_xlabel("ms since the step began")
    words = "; ".join(f"device {device} busy for {total * busy.get(device, 0):.0f} ms" for device in range(n_devices))
    ax.figure.set_label(f"What each device does: {words}, of {total:.0f} ms.")


def new_figure():
    """The explorer's figure, laid out once and for all: two axes, and what the models take for granted.

    What never changes, most of the picture's text, is drawn here once, and from then on shown as an image.
    """
    figure = Figure(figsize=(9.6, 6.8), layout="none")
    fixed = [figure.text(0.01, 0.015, (
        "Memory: the formula that the lesson checked against counted tensors; Adam. Assumed for a sample:\n"
        f"input {INPUT // 1024} KiB, {PER_USE // 1024} KiB per use of a weight. Time: a model, nothing in it is "
        f"measured. Assumed:\n{SPEED / 1e12:.0f} TFLOP/s per device, copies in turn, no overhead."), fontsize=11)]
    for bottom, colours in ((0.63, KINDS), (0.2, PHASES)):
        ax = figure.add_axes((0.1, bottom, 0.73, 0.27))
        ax.locator_params(axis="x", nbins=5)
        ax.set_axis_off()
        fixed.append(_legend(ax, colours))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = numpy.array(canvas.buffer_rgba())
    height, width = drawn.shape[:2]
    below, right = int(0.11 * height), int(0.832 * width)
    figure.figimage(drawn[-below:], zorder=-1)
    figure.figimage(drawn[:-below, right:], right, below, zorder=-1)
    for artist in fixed:
        artist.set_visible(False)
    for ax in figure.axes:
        ax.set_axis_on()
    return figure


def draw(figure, n_devices, batch, parameters, output, uses=1, link="PCIe, 12 GB/s"):
    """Draw into the figure's two axes: a model of memory above, a model of time below.

    Args:
        figure: From `new_figure`.
        n_devices, batch: Whole numbers from 1 up.
        parameters: Weights of the model, in float32.
        output: Numbers that the model returns per sample.
        uses: How often a sample uses each weight.
        link: A key of LINKS.

    Returns:
        The figure.
    """
    weights, size = 4 * parameters, 4 * output
    held = memory(batch, n_devices, weights, INPUT + uses * PER_USE, size)
    events = timeline(batch, n_devices, weights, size, uses, LINKS[link])
    alone = timeline(batch, 1, weights, size, uses, LINKS[link])
    total, single = (max(end for *_, end in step) for step in (events, alone))
    sizes, busy = [samples for samples in chunk_sizes(batch, n_devices) if samples], shares(events)
    said = f"{batch} samples on {n_devices} device{'s' * (n_devices > 1)}: chunks of {', '.join(map(str, sizes))}"
    holds = f"Device 0 holds {_size(sum(held[0].values()))}"
    if len(sizes) > 1:
        holds += f", device 1 {_size(sum(held[1].values()))}"
    speed = f"{single / total:.2f} times the speed of one device"
    waits = f"device 1 waits {1 - busy[1]:.0%} of the step" if len(sizes) > 1 else "nobody waits"
    above, below = figure.axes
    draw_memory(above, held)
    draw_timeline(below, events, n_devices)
    above.set_title(f"{said}\n{holds}", y=1)  # a given y: nobody measures what else is there
    below.set_title(f"One step, computed: {speed}\nOver {link}; {waits}", y=1)
    figure.set_label(f"{said}. {holds}. By a model {speed}; {waits}.")
    return figure


def data_parallel_explorer():
    """Move devices, batch, model and output; see who holds what and who waits."""
    wide = {"style": {"description_width": "190px"}, "layout": {"width": "620px"}}

    def choice(values, value, description):
        return widgets.SelectionSlider(options=[(f"{number:,}", number) for number in values], value=value,
                                       description=description, **wide)

    controls = {
        "n_devices": widgets.IntSlider(4, 1, 8, description="devices", **wide),
        "batch": widgets.IntSlider(64, 1, 256, description="batch size", **wide),
        "parameters": choice([million * 1_000_000 for million in (1, 5, 25, 100, 350, 1000)], 25_000_000,
                             "weights of the model"),
        "output": choice([1, 10, 1000, 50_000, 1_000_000, 10_000_000], 1000, "outputs per sample"),
        "uses": choice([1, 10, 100, 1000], 100, "uses of a weight per sample"),
        "link": widgets.ToggleButtons(options=list(LINKS), description="link", style={"button_width": "150px"}),
    }
    return Explorer(controls, partial(draw, new_figure()),
                    "DataParallel explorer: set devices, batch, weights, outputs, work per sample and link; the "
                    "picture shows which device holds what, and what each one does, or waits for, during a step.")
