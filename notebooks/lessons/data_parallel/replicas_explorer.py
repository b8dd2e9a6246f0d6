"""The DataParallel explorer: a step on a clock. Messages pass on the bus, memory fills, and bars of time grow.

`memory` and `timeline` are the models; the rest makes frames of them.
"""

from collections import Counter

import numpy

from helpers.figures import ACTIVITIES, HELD
from helpers.widgets.shapes import Lanes, box, doing, key, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider

#: What a device holds. Outputs are activations, too: a light shade of their colour.
KINDS = {kind: HELD[kind] for kind in ("weights", "gradients", "optimizer", "activations")}
KINDS["outputs"] = "#b57ab8"

MIB = 2**20
#: Bytes per second between two devices, and whether NCCL sends to all devices at once. (Nominal: PCIe 4.0 ×16
#: has 32 GB/s, the NVLink of an H100 450 GB/s in each direction.)
LINKS = {
    "PCIe 4, copies in turn": (25e9, False),
    "PCIe 4, NCCL": (25e9, True),
    "NVLink 4, NCCL": (350e9, True),
}
#: Operations per second of a device, and bytes per second of its own memory: nearly an H100, in float32.
SPEED, OWN_MEMORY = 60e12, 3e12
#: Bytes of a sample as it arrives, a colour image of 224×224 in float32, which the first layer keeps; and of
#: the other activations per use of the weights.
INPUT, PER_USE = 3 * 224 * 224 * 4, 64 * 1024
WEIGHTS = 100_000_000  #: bytes of the explorer's model
ASSUMED = (f"By a model: {WEIGHTS // 4_000_000} million weights, Adam, {SPEED / 1e12:.0f} TFLOP/s per device, "
           "no overhead, no Python.")


def chunk_sizes(batch, n_devices):
    """How many samples each device gets, as `torch.chunk` cuts them; 0 where none are left."""
    each = -(-batch // n_devices)
    return [max(0, min(each, batch - device * each)) for device in range(n_devices)]


def memory(batch, n_devices, weights, activations, output, states=2):
    """By device, what one step puts there: {kind: bytes}, not all of it at the same moment.

    Each device that gets samples holds weights, gradients, and its samples' activations and outputs. Device 0
    also holds the optimizer's state, the gathered outputs, and what the loss keeps of them (as large once
    more: the log-softmax of a cross-entropy). Left out are the whole batch, wherever it comes from, and the
    gradients of outputs.

    Args:
        weights: Bytes of the whole model.
        activations, output: Bytes of one sample; the input that the first layer keeps is an activation.
        states: Tensors that the optimizer keeps per weight: SGD 0, with momentum 1, Adam 2.
    """
    held = []
    for samples in chunk_sizes(batch, n_devices):
        used = weights if samples else 0
        held.append({
            "weights": used,
            "gradients": used,
            "optimizer": 0,
            "activations": samples * activations,
            "outputs": samples * output,
        })
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
    inputs = _copies([samples * INPUT / link for samples in sizes])
    outputs = _copies([samples * output / link for samples in sizes])
    model = _copies([weights / link] * len(sizes))
    if nccl and model:
        model = [dict.fromkeys(range(len(sizes)), weights / link)]
    # Two operations with each weight, which has 4 bytes; backward has twice as many.
    work = {device: samples * uses * 2 * weights / 4 / SPEED for device, samples in enumerate(sizes)}
    return _one_after_another({
        "scatter": inputs,
        "replicate": model,
        "forward": [work],
        "gather": outputs,
        "loss": [{0: 6 * batch * output / OWN_MEMORY}],
        "scatter back": outputs,  # the gradients of the outputs: gather, backwards
        "backward": [{device: 2 * took for device, took in work.items()}],
        "reduce": model,
        "optimizer": [{0: 7 * weights / OWN_MEMORY}],
    })


def _copies(seconds):
    """Copies between device 0 and each other one, which take so long: one after another."""
    return [dict.fromkeys((0, device), seconds[device]) for device in range(1, len(seconds))]


def _one_after_another(phases):
    """The events of {phase: [{device: seconds}]}: what stands in one dict happens at once."""
    events = []
    now = 0.0
    for phase, turns in phases.items():
        for seconds in turns:
            for device, took in seconds.items():
                events.append((device, phase, now, now + 1000 * took))
            now += 1000 * max(seconds.values())
    return events


def busy(events):
    """By device, the milliseconds in which it computes or copies; and those of the whole step."""
    took = Counter()
    for device, _, begin, end in events:
        took[device] += end - begin
    return took, max(end for *_, end in events)


def written_size(size):
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1000 * MIB else f"{size / MIB:,.0f} MiB"


FRAMES = 12
WIDTH = 560
BUS, DEVICES, DOES, TOP = 14, 47, 58, 82  #: where the bus is, the devices' names, what they do, what they hold
HIGH, LEGEND, LANES = 112, 233, 256  #: how high memory is drawn; where the legend is, and the clock
SPARE = 22  #: of the fullest memory, for the words at its top
STACK = ("weights", "optimizer", "activations", "outputs", "gradients")  #: from below, in order of arrival
#: What is sent in a phase, and what it is drawn as. All other phases compute.
SENT = {
    "scatter": ("samples", "activations"),
    "replicate": ("weights", "weights"),
    "gather": ("outputs", "outputs"),
    "scatter back": ("gradients", "gradients"),
    "reduce": ("gradients", "gradients"),
}
DOING = {"compute": "computes", "communication": "copies", "waiting": "waits"}
HOME = ("gather", "reduce")  #: phases in which something comes to device 0
#: What happens in a phase; {device} is the other one in a copy of device 0.
SAID = {
    "scatter": "Device 0 sends device {device} its chunk of the batch.",
    "replicate": "Device 0 sends device {device} all weights of the model.",
    "forward": "Each device computes the outputs of its own chunk.",
    "gather": "Device {device} sends its outputs to device 0.",
    "loss": "Device 0 computes the loss from all outputs.",
    "scatter back": "Device 0 sends device {device} the gradients of its outputs.",
    "backward": "Each device computes the gradients of all weights from its own chunk.",
    "reduce": "Device {device} sends its gradients to device 0, which adds them to its own.",
    "optimizer": "Device 0 changes its weights. The replicas on the other devices are thrown away.",
}
IN_PIECES = {
    "replicate": "NCCL sends the weights from device to device, in pieces: nobody waits for a turn.",
    "reduce": "NCCL sends gradients from device to device, in pieces, and adds them up on the way.",
}


class Step:
    """A step by the models, and the places of its devices in the picture."""

    def __init__(self, devices, batch, output, uses, link):
        speed, self.nccl = LINKS[link]
        self.batch = batch
        self.devices = range(devices)
        #: As `timeline` returns them; and those of one device with the same batch.
        self.events = timeline(batch, devices, WEIGHTS, 4 * output, uses, speed, self.nccl)
        self.alone = timeline(batch, 1, WEIGHTS, 4 * output, uses)
        self.total = self.events[-1][3]
        #: When the slower one is done: the devices, or one alone.
        self.end = max(self.total, self.alone[-1][3])
        #: {(device, phase): [begin, end]}: the copies of device 0 in a phase follow each other, and are one here.
        #: The one alone comes after the other devices.
        self.times = {}
        alone = [(devices, *event[1:]) for event in self.alone]
        for device, phase, begin, end in self.events + alone:
            self.times.setdefault((device, phase), [begin, end])[1] = end
        #: As `memory` returns it; and the bytes of the outputs of the whole batch.
        self.held = memory(batch, devices, WEIGHTS, INPUT + uses * PER_USE, 4 * output)
        self.gathered = 4 * batch * output
        self.pitch = WIDTH / devices
        self.wide = min(110, self.pitch - 3)

    def middle(self, device):
        return self.pitch * (device + 0.5)

    def left(self, device):
        return self.middle(device) - self.wide / 2


def held_at(step, device, now):
    """What a device holds at a moment, {kind: bytes}. Nothing is freed: in the end it is what `memory` says."""

    def done(phase):
        """How much of a phase is done, from 0 to 1. (A device without samples has no times, and holds nothing.)"""
        return numpy.interp(now, step.times.get((device, phase), (0, 0)), (0, 1))

    kinds = dict(step.held[device])
    kinds["activations"] *= done("forward")
    kinds["gradients"] *= done("backward")
    if device > 0:
        kinds["weights"] *= done("replicate")
        kinds["outputs"] *= done("forward")
    else:
        own = kinds["outputs"] - 2 * step.gathered
        kinds["outputs"] = own * done("forward") + step.gathered * (done("gather") + done("loss"))
    return kinds


def scene(devices, batch, output, uses, link):
    """A step as frames, at moments that are equally far apart."""
    step = Step(devices, batch, output, uses, link)
    names = [f"device {device}" for device in step.devices]
    row = min(26, 156 // (devices + 1))
    lanes = Lanes([*names, "one alone"], step.end, y=LANES, w=455, row=row)
    bars = [*_bars(step, lanes)]
    common = [*_legend(), *_machine(step)]
    frames = []
    for before, now in lanes.moments(FRAMES):
        shapes = [*common, *lanes.shapes(now), *lanes.bars(bars, now)]
        shapes += _messages(step, before, now)
        for device in step.devices:
            shapes += _device(step, device, now)
        title, note = _said(step, now)
        frames.append({"title": title, "note": note, "shapes": shapes})
    return {
        "size": [WIDTH, lanes.bottom + 42],
        "axis": lanes.axis,
        "flows": True,
        "pace": 600,
        "frames": frames,
    }


def _bars(step, lanes):
    """What each row does from when to when: "waits" lies under all."""
    for device in step.devices:
        yield f"{device} waits", device, 0, step.total, doing("waiting", layer=-1)
    for (row, phase), (begin, end) in step.times.items():
        # A short bar has no room for the word.
        wide = lanes.at(end) - lanes.at(begin)
        says = "text" if wide > 9 * len(phase) else "tip"
        yield f"{row} {phase}", row, begin, end, doing(_activity(phase), **{says: phase})


def _activity(phase):
    """What a phase is, for `doing`."""
    return "communication" if phase in SENT else "compute"


def _legend():
    left = 4
    for kind in STACK:
        yield from key(kind, left, LEGEND, fill=KINDS[kind])
        left += 46 + 8 * len(kind)


def _machine(step):
    """What stays as it is: the devices, the bus between them, and how many samples each gets."""
    bus = []
    samples = chunk_sizes(step.batch, len(step.devices))
    for device in step.devices:
        middle = step.middle(device)
        bus += [[middle, BUS], [middle, 38], [middle, BUS]]
        gets = f"{samples[device]} of {step.batch}" if samples[device] else "idle"
        yield words(f"device {device}", middle, DEVICES, f"device {device}", "middle", size=14, bold=True)
        yield box(f"memory {device}", step.left(device), TOP, step.wide, HIGH, round=0)
        yield words(f"samples {device}", middle, TOP + HIGH + 13, gets, "middle", size=14)
    yield path("bus", bus, width=3, opacity=0.4, layer=-1)


def _messages(step, before, now):
    """What is on the bus, or was since the moment `before`."""
    wide = min(86, step.pitch - 4)
    for device, phase, begin, end in step.events:
        if device == 0 or phase not in SENT or begin >= now or end <= before:
            continue
        # In pieces, a device gets its own from the one beside it, and not from device 0.
        sender = device - 1 if step.nccl and phase in IN_PIECES else 0
        source, target = step.middle(sender), step.middle(device)
        if phase in HOME:
            source, target = target, source
        # One that has arrived stays where it is to go.
        x = numpy.interp(now, (begin, end), (source, target))
        text, kind = SENT[phase]
        yield box(
            f"{phase} to {device}", x - wide / 2, BUS - 12, wide, 24,
            fill=KINDS[kind],
            text=text,
            size=13,
            layer=1,
            passes=end <= now or None,
            **{"from": {"x": source - wide / 2}},
        )


def _device(step, device, now):
    """A device at a moment: what it does, and what it holds."""
    left = step.left(device)
    if 0 < now <= step.total:
        activity = _activity_at(step, device, now)
        yield box(
            f"does {device}", left, DOES, step.wide, 22,
            text=DOING[activity],
            size=13,
            fill=ACTIVITIES[activity],
        )
    # All devices have one scale, by the one that holds most in the end.
    totals = [sum(kinds.values()) for kinds in step.held]
    scale = (HIGH - SPARE) / max(totals)
    kinds = held_at(step, device, now)
    y = TOP + HIGH
    for kind in STACK:
        high = scale * kinds[kind]
        y -= high
        if high:
            yield box(
                f"{kind} {device}", left, y, step.wide, high,
                fill=KINDS[kind],
                round=0,
            )
    total = written_size(sum(kinds.values()))
    yield words(f"total {device}", step.middle(device), TOP + SPARE / 2, total, "middle", size=13)


def _activity_at(step, device, now):
    for (other, phase), (begin, end) in step.times.items():
        if other == device and begin < now <= end:
            return _activity(phase)
    return "waiting"


def _said(step, now):
    """Title and note of a frame."""
    number = len(step.devices)
    if now == 0:
        return f"Before: device 0 has the model; a batch of {step.batch}", ASSUMED
    if now == step.end:
        took, total = busy(step.events)
        alone = step.alone[-1][3]
        speed = alone / total
        title = f"{number} devices took {total:.1f} ms, one alone {alone:.1f} ms: {speed:.2f} times the speed"
        return title, f"Device 1 waited for {1 - took[1] / total:.0%} of the step."
    # A copy stands in the events twice: last for the other device, which is to be named.
    for device, phase, begin, end in reversed(step.events):
        if begin < now <= end:
            note = SAID[phase].format(device=device)
            if step.nccl:
                note = IN_PIECES.get(phase, note)
            return f"{now:.1f} ms: {phase}", note
    return f"{now:.1f} ms: {number} devices are done", "One device alone is still busy."


PRESETS = {
    "a small batch": preset("Press Play. Compare blue and red. What takes most of the step?", batch=8),
    "many outputs": preset("Press Play. What does device 0 hold that the others do not?", output=1_000_000),
    "fast links": preset("Press Play. How many times as fast as one device are four now?",
                         link="NVLink 4, NCCL", uses=1000),
    "5 samples": preset("Press Play. Which device has nothing to do?", batch=5, uses=1000),
}


def data_parallel_explorer():
    """DataParallel explorer: a step on several devices; what travels between them, what each one holds, does and waits
    for, and one device alone for comparison."""
    outputs = [1000, 10_000, 50_000, 100_000, 200_000, 300_000, 500_000, 1_000_000]
    controls = {
        "devices": slider("devices", 4, range(2, 9)),
        "batch": slider("batch size", 64, [2, 3, 5, 8, 9, 16, 32, 64, 128, 256]),
        "output": slider("outputs per sample", 1000, [(f"{number:,}", number) for number in outputs]),
        "uses": slider("weight uses", 100, [1, 10, 100, 1000]),
        "link": buttons("link", next(iter(LINKS)), [(name.replace(" 4", "").replace("copies ", ""), name)
                                                    for name in LINKS]),
    }
    return Stage(
        "data_parallel_explorer",
        data_parallel_explorer.__doc__,
        scene,
        controls,
        look="Press Play. Which device holds most? Which one works while the others wait?",
        presets=PRESETS,
    )
