"""The DataParallel explorer: which device holds what, and who waits while a step runs.

`memory` and `timeline` are the models; `draw_memory` and `draw_timeline` also draw what was measured in lesson 04.
"""

import html

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg, ticks

KINDS = ("weights", "gradients", "optimizer", "activations", "outputs")
_KIND_COLOURS = dict(zip(KINDS, (COLOURS[0], COLOURS[4], COLOURS[2], COLOURS[5], COLOURS[3]), strict=True))
PHASES = ("scatter", "replicate", "forward", "gather", "loss", "backward", "reduce", "optimizer")
_PHASE_COLOURS = dict(zip(PHASES, (COLOURS[4], COLOURS[1], COLOURS[0], COLOURS[3], COLOURS[7], "#00365c", "#8a3600",
                                   COLOURS[2]), strict=True))
_WAITS = "#e8e8e8"

MIB = 2**20
#: What the explorer takes for granted; the picture says so. Bytes per second of a link between two devices:
LINKS = {"PCIe, 12 GB/s": 12e9, "NVLink, 100 GB/s": 100e9}
#: Operations per second that a device does, and bytes per second of its own memory.
SPEED, OWN_MEMORY = 20e12, 1e12
#: Bytes of a sample as it arrives, a colour image of 224×224 in float32, which the first layer keeps; bytes of the
#: other activations per use of the weights.
INPUT, PER_USE = 3 * 224 * 224 * 4, 64 * 1024


def chunk_sizes(batch, n_devices):
    """How many samples each device gets, as `torch.chunk` cuts them; 0 where none are left.

    Raises:
        ValueError: there is no sample or no device.
    """
    if batch < 1 or n_devices < 1:
        raise ValueError(f"batch and n_devices must be 1 or more, not {batch} and {n_devices}")
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


def _text(x, y, text, more=""):
    return f'<text x="{x:g}" y="{y:g}" {more}>{html.escape(text)}</text>'


def _size(size):
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1000 * MIB else f"{size / MIB:,.0f} MiB"


def _legend(colours, y, names):
    parts, x = [], 10
    for name in names:
        parts.append(f'<rect x="{x}" y="{y - 14}" width="16" height="16" fill="{colours[name]}" stroke="#555"/>')
        parts.append(_text(x + 22, y, name))
        x += 40 + 9 * len(name)
    return parts


def _bars(held, top):
    """The memory of each device as a stacked bar, and the height of it all."""
    high, most = min(30, 150 / len(held)), max(1, *(sum(kinds.values()) for kinds in held))
    parts = _legend(_KIND_COLOURS, top + 16, KINDS)
    top += 30
    for device, kinds in enumerate(held):
        y, x = top + device * high, 110
        parts.append(_text(10, y + high / 2 + 5, f"device {device}", 'font-size="14"'))
        for kind in KINDS:
            wide = 690 * kinds.get(kind, 0) / most
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high - 3:.1f}" '
                         f'fill="{_KIND_COLOURS[kind]}"/>')
            x += wide
        said = _size(sum(kinds.values())) if any(kinds.values()) else "no samples: idle"
        parts.append(_text(x + 8, y + high / 2 + 5, said, 'font-size="14"'))
    return parts, 30 + len(held) * high


def _rows(events, n_devices, top):
    """What each device does over time, and the height of it all."""
    high, total = min(30, 150 / n_devices), max(end for *_, end in events)
    parts = _legend({**_PHASE_COLOURS, "waits": _WAITS}, top + 16, [*PHASES, "waits"])
    top += 30
    for device in range(n_devices):
        y = top + device * high
        parts.append(_text(10, y + high / 2 + 5, f"device {device}", 'font-size="14"'))
        parts.append(f'<rect x="110" y="{y:.1f}" width="830" height="{high - 3:.1f}" fill="{_WAITS}"/>')
    for device, phase, begin, end in events:
        parts.append(f'<rect x="{110 + 830 * begin / total:.1f}" y="{top + device * high:.1f}" '
                     f'width="{max(0.6, 830 * (end - begin) / total):.1f}" height="{high - 3:.1f}" '
                     f'fill="{_PHASE_COLOURS[phase]}"/>')
    bottom = top + n_devices * high
    parts += ticks(110, 940, bottom + 16, lambda share: f"{total * share:,.1f} ms")
    return parts, 30 + n_devices * high + 22


def draw_memory(held, title):
    """What each device holds, as SVG.

    Args:
        held: By device, {kind of KINDS: bytes}, from `memory` or counted.
        title: What it is; for example "Measured: …".
    """
    parts, height = _bars(held, 36)
    words = "; ".join(f"device {device} {_size(sum(kinds.values()))}" for device, kinds in enumerate(held))
    return svg(960, 44 + height, [_text(10, 26, title, 'font-size="18" font-weight="bold"'), *parts],
               f"{title}: {words}")


def draw_timeline(events, n_devices, title):
    """What each device does during a step, as SVG.

    Args:
        events: [(device, phase of PHASES, begin, end)] in milliseconds.
        n_devices: Rows.
        title: What it is; for example "Measured: …".
    """
    parts, height = _rows(events, n_devices, 36)
    total, busy = max(end for *_, end in events), shares(events)
    words = "; ".join(f"device {device} busy for {total * busy.get(device, 0):.0f} ms" for device in range(n_devices))
    return svg(960, 44 + height, [_text(10, 26, title, 'font-size="18" font-weight="bold"'), *parts],
               f"{title}: {words}, of {total:.0f} ms")


def draw(n_devices, batch, parameters, output, uses=1, link="PCIe, 12 GB/s"):
    """The explorer's picture, as SVG: a model of memory above, a model of time below.

    Args:
        n_devices, batch: Whole numbers from 1 up.
        parameters: Weights of the model, in float32.
        output: Numbers that the model returns per sample.
        uses: How often a sample uses each weight.
        link: A key of LINKS.
    """
    weights, size = 4 * parameters, 4 * output
    held = memory(batch, n_devices, weights, INPUT + uses * PER_USE, size)
    events = timeline(batch, n_devices, weights, size, uses, LINKS[link])
    alone = timeline(batch, 1, weights, size, uses, LINKS[link])
    total, single = (max(end for *_, end in step) for step in (events, alone))
    sizes, busy = [samples for samples in chunk_sizes(batch, n_devices) if samples], shares(events)
    speed = f"{single / total:.2f} times the speed of one device"
    first = f"Device 0 holds {_size(sum(held[0].values()))}"
    if len(sizes) > 1:
        first += f", device 1 {_size(sum(held[1].values()))}; device 1 waits {1 - busy[1]:.0%} of the step"
    bars, high = _bars(held, 70)
    rows, more = _rows(events, n_devices, 70 + high + 40)
    end = 70 + high + 40 + more
    cut = f"chunks of {', '.join(map(str, sizes))}"
    parts = [_text(10, 26, f"{batch} samples on {n_devices} device{'s' * (n_devices > 1)}: {cut}; {speed}",
                   'font-size="18" font-weight="bold"'),
             _text(10, 52, first),
             *bars, _text(10, 70 + high + 28, "One step, computed:", 'font-weight="bold"'),
             _text(185, 70 + high + 28, "after the loss, scatter sends the gradients of the outputs, and reduce brings "
                                        "those of the weights", 'font-size="14"'), *rows,
             _text(10, end + 24, "Memory: the model that the lesson checked against counted tensors; Adam. Assumed for "
                                 f"a sample: input {INPUT // 1024} KiB, {PER_USE // 1024} KiB per use.",
                   'font-size="14"'),
             _text(10, end + 44, f"Time: a model, nothing in it is measured. Assumed: {SPEED / 1e12:.0f} TFLOP/s "
                                 f"per device, link {link}, copies in turn, no overhead.", 'font-size="14"')]
    return svg(960, end + 56, parts, f"{batch} samples on {n_devices} devices, {cut}. {first}. {speed}, by a model.")


def data_parallel_explorer(n_devices=4, batch=64, parameters=25_000_000, output=1000, uses=100):
    """Move devices, batch, model and output; see who holds what and who waits."""
    wide = {"style": {"description_width": "190px"}, "layout": {"width": "620px"}}

    def choice(values, value, description, unit=""):
        return widgets.SelectionSlider(options=[(f"{number:,}{unit}", number) for number in values], value=value,
                                       description=description, **wide)

    controls = {
        "n_devices": widgets.IntSlider(n_devices, 1, 8, description="devices", **wide),
        "batch": widgets.IntSlider(batch, 1, 256, description="batch size", **wide),
        "parameters": choice([million * 1_000_000 for million in (1, 5, 25, 100, 350, 1000)], parameters,
                             "weights of the model"),
        "output": choice([1, 10, 1000, 50_000, 1_000_000, 10_000_000], output, "outputs per sample"),
        "uses": choice([1, 10, 100, 1000], uses, "uses of a weight per sample"),
        "link": widgets.ToggleButtons(options=list(LINKS), description="link", style={"button_width": "150px"}),
    }
    return Explorer(controls, draw,
                    "DataParallel explorer: set devices, batch, weights, outputs, work per sample and link; the "
                    "picture shows which device holds what, and what each one does, or waits for, during a step.")
