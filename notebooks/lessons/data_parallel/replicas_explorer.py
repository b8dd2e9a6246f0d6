"""The DataParallel explorer: which device holds what, and who waits while a step runs.

`memory` and `timeline` are the models; `draw_memory` also draws what the lesson counted.
"""

from collections import Counter
from itertools import accumulate

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from helpers.figures import ACTIVITIES, HATCHES, HELD
from helpers.widgets.explorer import Explorer, buttons, choice, clock, curtain, slider, wipe

#: What a device holds. Outputs are activations, too: a light shade of their colour.
KINDS = {kind: HELD[kind] for kind in ("weights", "gradients", "optimizer", "activations")}
KINDS["outputs"] = "#b57ab8"
#: What it does: computing in shades of blue, communication in shades of red.
PHASES = {"forward": "#7088fd", "loss": "#7088fd",
          "backward": ACTIVITIES["compute"], "optimizer": ACTIVITIES["compute"],
          "replicate": ACTIVITIES["communication"], "reduce": ACTIVITIES["communication"],
          "scatter": "#e2584a", "gather": "#e2584a", "waits": ACTIVITIES["waiting"]}

MIB = 2**20
#: Bytes per second between two devices, and whether NCCL sends to all devices at once. (Nominal: PCIe 4.0 ×16
#: has 32 GB/s, the NVLink of an H100 450 GB/s in each direction.)
LINKS = {"PCIe 4, copies in turn": (25e9, False), "PCIe 4, NCCL": (25e9, True),
         "NVLink 4, NCCL": (350e9, True)}
#: Operations per second of a device, and bytes per second of its own memory: nearly an H100, in float32.
SPEED, OWN_MEMORY = 60e12, 3e12
#: Bytes of a sample as it arrives, a colour image of 224×224 in float32, which the first layer keeps; and of
#: the other activations per use of the weights.
INPUT, PER_USE = 3 * 224 * 224 * 4, 64 * 1024
ASSUMED = f"""\
Memory: the lesson's formula, with Adam and {PER_USE // 1024} KiB of activations per use of a weight.
Time: a model, nothing in it is measured. {SPEED / 1e12:.0f} TFLOP/s per device, no overhead, no Python."""


def chunk_sizes(batch, n_devices):
    """How many samples each device gets, as `torch.chunk` cuts them; 0 where none are left."""
    each = -(-batch // n_devices)
    return [max(0, min(each, batch - device * each)) for device in range(n_devices)]


def memory(batch, n_devices, weights, activations, output, states=2):
    """By device, what one step puts there: {kind: bytes}, not all of it at the same moment.

    Each device that gets samples holds weights, gradients, and its samples' activations and outputs. Device 0
    also holds the optimizer's state, the gathered outputs, and what the loss keeps of them (as large once
    more: the log-softmax of a cross-entropy). The batch comes from the CPU's memory.

    Args:
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


def timeline(batch, n_devices, weights, output, uses=1, link=25e9, nccl=False):
    """A step as [(device, phase, begin, end)] in milliseconds, by a model without overhead.

    A sample uses each weight `uses` times (2 operations forward, 4 backward). `link` is bytes per second
    between two devices. Samples and outputs are copied to one device after another. So are weights and
    gradients, unless `nccl`: then they pass from device to device in pieces, and all devices have them after
    about the time of one copy.
    """
    sizes = [samples for samples in chunk_sizes(batch, n_devices) if samples]
    events = []

    def add(phase, seconds):
        """The next thing that happens, on each device of `seconds`."""
        now = max((end for *_, end in events), default=0.0)
        events.extend((device, phase, now, now + 1000 * took) for device, took in seconds.items())

    def in_turn(phase, bytes_of):
        for device, samples in enumerate(sizes):
            if device > 0:
                add(phase, dict.fromkeys((0, device), bytes_of(samples) / link))

    def whole_model(phase):
        if nccl and len(sizes) > 1:
            add(phase, dict.fromkeys(range(len(sizes)), weights / link))
        else:
            in_turn(phase, lambda _: weights)

    def side_by_side(phase, operations):
        per_sample = operations * weights / 4 * uses / SPEED
        add(phase, {device: samples * per_sample for device, samples in enumerate(sizes)})

    in_turn("scatter", lambda samples: samples * INPUT)
    whole_model("replicate")
    side_by_side("forward", 2)
    in_turn("gather", lambda samples: samples * output)
    add("loss", {0: 6 * batch * output / OWN_MEMORY})
    in_turn("scatter", lambda samples: samples * output)  # the gradients of the outputs: gather, backwards
    side_by_side("backward", 4)
    whole_model("reduce")
    add("optimizer", {0: 7 * weights / OWN_MEMORY})
    return events


def busy(events):
    """By device, the milliseconds in which it computes or copies; and those of the whole step."""
    took = Counter()
    for device, _, begin, end in events:
        took[device] += end - begin
    return took, max(end for *_, end in events)


def _size(size):
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1000 * MIB else f"{size / MIB:,.0f} MiB"


def _rows(ax, n_devices, colours):
    """Empty axes with a row for each device, and what the colours mean. Only what is new is made."""
    wipe(ax)
    if ax.get_ylim() != (n_devices - 0.5, -0.5):
        ax.set_yticks(range(n_devices), [f"device {device}" for device in range(n_devices)])
        ax.set_ylim(n_devices - 0.5, -0.5)
    if ax.get_legend() is None:
        ax.locator_params(axis="x", nbins=5)
        names = {}
        for name, colour in colours.items():
            names.setdefault(colour, []).append(name)
        ax.legend(handles=[Patch(facecolor=colour, label=", ".join(same), edgecolor="white", linewidth=0)
                           for colour, same in names.items()],
                  loc="center left", bbox_to_anchor=(1, 0.5), labelspacing=0.2, handlelength=1.2, borderpad=0)


def _bars(ax, bars, hatch=""):
    """Draw (row, begin, end, colour), all in one artist, which is quick."""
    corners = [[(begin, row - 0.42), (begin, row + 0.42), (end, row + 0.42), (end, row - 0.42)]
               for row, begin, end, _ in bars]
    ax.add_collection(PolyCollection(corners, facecolors=[colour for *_, colour in bars], hatch=hatch,
                                     edgecolors="white", linewidths=0), autolim=False)


def draw_memory(ax, held):
    """Draw what each device holds, {kind of KINDS: bytes}, as a stacked bar."""
    totals = [sum(kinds.values()) for kinds in held]
    unit, size = ("GiB", 1024 * MIB) if max(totals) >= 1000 * MIB else ("MiB", MIB)
    _rows(ax, len(held), KINDS)
    bars = []
    for device, (kinds, total) in enumerate(zip(held, totals, strict=True)):
        ends = list(accumulate(kinds.get(kind, 0) / size for kind in KINDS))
        bars += [(device, *bar) for bar in zip([0, *ends], ends, KINDS.values(), strict=False)]
        ax.annotate(_size(total) if total else "no samples: idle", (total / size, device), (5, 0),
                    textcoords="offset points", va="center")
    _bars(ax, bars)
    ax.set(xlim=(0, 1.17 * max(totals) / size), xlabel=f"{unit} held")  # room beside the longest bar
    words = "; ".join(f"device {device} {_size(total)}" for device, total in enumerate(totals))
    ax.figure.set_label(f"What each device holds: {words}.")


def draw_timeline(ax, events, n_devices):
    """Draw what each device does during a step, (device, phase of PHASES, begin, end), and when it waits."""
    took, total = busy(events)
    _rows(ax, n_devices, PHASES)
    _bars(ax, [(device, 0, total, PHASES["waits"]) for device in range(n_devices)], HATCHES["waiting"])
    bars = [(device, begin, end, PHASES[phase]) for device, phase, begin, end in events]
    copies = [PHASES[phase] for phase in ("scatter", "replicate")]
    _bars(ax, [bar for bar in bars if bar[-1] in copies], HATCHES["communication"])
    _bars(ax, [bar for bar in bars if bar[-1] not in copies])
    ax.set(xlim=(0, total), xlabel="ms since the step began")
    words = "; ".join(f"device {device} busy for {took[device]:.0f} ms" for device in range(n_devices))
    ax.figure.set_label(f"What each device does: {words}, of {total:.0f} ms.")


def data_parallel_explorer():
    """DataParallel explorer: set devices, batch, weights, outputs, work per sample and link; the picture
    shows which device holds what, and what each one does, or waits for, during a step."""

    def numbers(description, value, *options):
        return choice(description, value, [(f"{number:,}", number) for number in options])

    controls = {
        "n_devices": slider("devices", 4, 1, 8),
        "batch": slider("batch size", 64, 1, 256),
        "parameters": numbers("weights of the model", 25_000_000, 10**6, 5_000_000, 25_000_000, 10**8,
                              350_000_000, 10**9),
        "output": numbers("outputs per sample", 1000, 1, 10, 1000, 50_000, 10**6, 10**7),
        "uses": numbers("uses of a weight per sample", 100, 1, 10, 100, 1000),
        "link": buttons("link", LINKS),
        "time": clock(),
    }
    presets = {
        "a small batch": ({"batch": 8}, "Compare blue and red below. What takes most of the step?"),
        "many outputs": ({"output": 1_000_000}, "What does device 0 hold that the others do not?"),
        "fast links": ({"link": list(LINKS)[-1], "uses": 1000, "time": 0},
                       "Press Play. What is left of the red parts, and who still waits?"),
    }
    figure = Figure(figsize=(9.6, 5.6), layout="none")
    above, below = figure.add_axes((0.1, 0.65, 0.675, 0.25)), figure.add_axes((0.1, 0.19, 0.675, 0.25))
    figure.text(0.01, 0.015, ASSUMED, fontsize=11)

    def redraw(n_devices, batch, parameters, output, uses, link, time=100):
        weights, size = 4 * parameters, 4 * output
        held = memory(batch, n_devices, weights, INPUT + uses * PER_USE, size)
        events = timeline(batch, n_devices, weights, size, uses, *LINKS[link])
        (took, total), (_, alone) = busy(events), busy(timeline(batch, 1, weights, size, uses))
        sizes = [samples for samples in chunk_sizes(batch, n_devices) if samples]
        devices = f"{n_devices} device{'s' if n_devices > 1 else ''}"
        said = f"{batch} samples on {devices}: chunks of {', '.join(map(str, sizes))}"
        holds, waits = f"Device 0 holds {_size(sum(held[0].values()))}", "nobody waits"
        if len(sizes) > 1:
            holds += f", device 1 {_size(sum(held[1].values()))}"
            waits = f"device 1 waits {1 - took[1] / total:.0%} of the step"
        speed = f"{alone / total:.2f} times the speed of one device"
        draw_memory(above, held)
        draw_timeline(below, events, n_devices)
        above.set_title(f"{said}\n{holds}", y=1)  # a given y: nobody measures what else is there
        below.set_title(f"One step, computed: {speed}\nOver {link}; {waits}", y=1)
        figure.set_label(f"{said}. {holds}. By a model {speed}; {waits}.")
        curtain(below, time)
        return figure

    return Explorer(controls, redraw, data_parallel_explorer.__doc__,
                    "Which device is full first? Which one works while the others wait?", presets, "time")
