"""The DataParallel explorer: a step on a clock. What travels between the devices, what each holds, and who waits.

`memory` and `timeline` are the models; the rest makes frames of them.
"""

from collections import Counter
from typing import NamedTuple

from helpers.figures import ACTIVITIES, HELD
from helpers.widgets.shapes import Lanes, box, doing, path, words
from helpers.widgets.stage import Stage, buttons, preset, slider

#: What a device holds. Outputs are activations, too: a light shade of their colour.
KINDS = {kind: HELD[kind] for kind in ("weights", "gradients", "optimizer", "activations")}
KINDS["outputs"] = "#b57ab8"

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
WEIGHTS = 100_000_000  #: bytes of the explorer's model
ASSUMED = f"""\
A model, nothing is measured: {WEIGHTS // 4_000_000} million weights, Adam, {PER_USE // 1024} KiB of activations per \
use of a weight, {SPEED / 1e12:.0f} TFLOP/s per device, no overhead, no Python."""


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


def written_size(size):
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1000 * MIB else f"{size / MIB:,.0f} MiB"


FRAMES = 24
WIDTH, BUS, TOP, HIGH = 560, 14, 82, 112  #: of the scene; the bus; where the devices' memory begins
STACK = ("weights", "optimizer", "activations", "outputs", "gradients")  #: from below, in order of arrival
#: What is sent in a phase, and what it is drawn as. All other phases compute.
SENT = {"scatter": ("samples", "activations"), "replicate": ("weights", "weights"), "gather": ("outputs", "outputs"),
        "scatter back": ("gradients", "gradients"), "reduce": ("gradients", "gradients")}
DOES = {"compute": "computes", "communication": "copies", "waiting": "waits"}
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
IN_PIECES = {"replicate": "NCCL sends the weights from device to device, in pieces: nobody waits for a turn.",
             "reduce": "NCCL sends gradients from device to device, in pieces, and adds them up on the way."}


class Step(NamedTuple):
    """A step by the models."""

    batch: int
    events: list  # as `timeline` returns them, with "scatter back" for the second scatter
    held: list  # as `memory` returns it
    gathered: int  # bytes of the outputs of the whole batch
    nccl: bool
    alone: list  # the events of one device with the same batch

    @property
    def devices(self):
        return range(len(self.held))

    @property
    def total(self):
        return self.events[-1][3]

    @property
    def end(self):
        """When the slower one is done: the devices, or one alone."""
        return max(self.total, self.alone[-1][3])

    def ends(self, phase, device):
        """When the phase begins and ends on a device; (0, 0) if it has no part in it."""
        times = [event[2:] for event in self.events if event[:2] == (device, phase)] or [(0, 0)]
        return times[0][0], times[-1][1]

    def share(self, phase, device, now):
        """How much of a phase is done on a device, from 0 to 1."""
        begin, end = self.ends(phase, device)
        return min(1, max(0, now - begin) / max(1e-9, end - begin))


def simulate(devices, batch, output, uses, link):
    speed, nccl = LINKS[link]
    events = timeline(batch, devices, WEIGHTS, 4 * output, uses, speed, nccl)
    lost = next(end for _, phase, _, end in events if phase == "loss")
    renamed = [(device, "scatter back" if phase == "scatter" and begin >= lost else phase, begin, end)
               for device, phase, begin, end in events]
    held = memory(batch, devices, WEIGHTS, INPUT + uses * PER_USE, 4 * output)
    return Step(batch, renamed, held, 4 * batch * output, nccl, timeline(batch, 1, WEIGHTS, 4 * output, uses))


def held_at(step, device, now):
    """What a device holds at a moment, {kind: bytes}. Nothing is freed: in the end it is what `memory` says."""
    kinds = dict(step.held[device])
    kinds["activations"] *= step.share("forward", device, now)
    kinds["gradients"] *= step.share("backward", device, now)
    if device > 0:
        kinds["weights"] *= step.share("replicate", device, now)
        kinds["outputs"] *= step.share("forward", device, now)
    else:
        kinds["outputs"] = (kinds["outputs"] - 2 * step.gathered) * step.share("forward", 0, now)
        kinds["outputs"] += step.gathered * (step.share("gather", 0, now) + step.share("loss", 0, now))
    return kinds


def spans(step):
    """What each row does from when to when, [(row, phase, begin, end)]: "waits" lies under all; one alone is last."""
    for device in step.devices:
        yield device, "waits", 0, step.total
        for phase in dict.fromkeys(event[1] for event in step.events if event[0] == device):
            yield device, phase, *step.ends(phase, device)
    yield from ((len(step.held), *event[1:]) for event in step.alone)


def activity(phase):
    """What a phase is, as `doing` takes it."""
    return "waiting" if phase == "waits" else "communication" if phase in SENT else "compute"


def scene(devices, batch, output, uses, link):
    """A step as frames, one after each 24th of its time."""
    step = simulate(devices, batch, output, uses, link)
    names = [*(f"device {device}" for device in step.devices), "one alone"]
    row = min(26, 156 // len(names))
    lanes = Lanes(names, step.end, y=256, w=455, row=row)
    bars = [(f"{number} {phase}", number, begin, end, _look(step, number, phase, lanes.at(end) - lanes.at(begin)))
            for number, phase, begin, end in spans(step)]
    common = [*_legend(), *_bus(step)]
    frames = []
    for number in range(FRAMES + 1):
        now, before = step.end * number / FRAMES, step.end * (number - 1) / FRAMES
        shapes = [*common, *lanes.shapes(now), *lanes.bars(bars, now), *_messages(step, before, now)]
        for device in step.devices:
            shapes += _device(step, device, now)
        frames.append({**_said(step, now), "shapes": shapes})
    return {"size": [WIDTH, lanes.bottom + 42], "axis": lanes.axis, "flows": True, "pace": 350, "frames": frames}


def _look(step, row, phase, wide):
    """Keywords of a bar; those that are too narrow for their words have none."""
    if phase == "waits":
        took, total = busy(step.events)
        return doing("waiting", layer=-1, tip=f"device {row} waits for {total - took[row]:.1f} of {total:.1f} ms")
    text = phase if wide > 9 * len(phase) else None
    return doing(activity(phase), text=text, tip=phase)


def _pitch(step):
    return WIDTH / len(step.held)


def _middle(step, device):
    return _pitch(step) * (device + 0.5)


def _legend():
    x = 4
    for kind in STACK:
        yield box(f"colour {kind}", x, 226, 14, 14, fill=KINDS[kind])
        yield words(f"legend {kind}", x + 19, 233, kind, size=14)
        x += 46 + 8 * len(kind)


def _bus(step):
    """What connects the devices."""
    ends = [[_middle(step, device), BUS] for device in (0, step.devices[-1])]
    yield path("bus", ends, width=3, opacity=0.4, layer=-1)
    for device in step.devices:
        x = _middle(step, device)
        yield path(f"way {device}", [[x, BUS], [x, 38]], width=3, opacity=0.4, layer=-1)
        yield words(f"device {device}", x, 47, f"device {device}", "middle", size=14, bold=True)


def _device(step, device, now):
    """A device at a moment: what it does, what it holds, and its samples."""
    wide = min(110, _pitch(step) - 3)
    left = _middle(step, device) - wide / 2
    yield box(f"memory {device}", left, TOP, wide, HIGH, round=0, tip=f"the memory of device {device}")
    if 0 < now <= step.total:
        kind = activity(next((phase for number, phase, begin, end in step.events
                              if number == device and begin < now <= end), "waits"))
        yield box(f"does {device}", left, 58, wide, 22, text=DOES[kind], size=13, fill=ACTIVITIES[kind])
    scale = (HIGH - 22) / max(sum(kinds.values()) for kinds in step.held)
    kinds, y = held_at(step, device, now), TOP + HIGH
    for kind in STACK:
        high = scale * kinds[kind]
        y -= high
        if high:
            yield box(f"{kind} {device}", left, y, wide, high, fill=KINDS[kind], round=0,
                      tip=f"device {device}, {kind}: {written_size(step.held[device][kind])} in the end")
    total = sum(kinds.values())
    if total:
        yield words(f"total {device}", left + wide / 2, y - 10, written_size(total), "middle", size=13)
    yield words(f"samples {device}", left + wide / 2, TOP + HIGH + 13, _samples(step, device, now), "middle", size=14)


def _samples(step, device, now):
    if device == 0 and now == 0:
        return f"all {step.batch}"
    samples = chunk_sizes(step.batch, len(step.held))[device]
    if not samples:
        return "idle"
    return f"{samples} of {step.batch}" if step.ends("scatter", device)[1] <= now else ""


def _messages(step, before, now):
    """What is on the bus, or was since the moment `before`."""
    wide = min(86, _pitch(step) - 4)
    for device, phase, begin, end in step.events:
        if device == 0 or phase not in SENT or begin >= now or end <= before:
            continue
        sender = device - 1 if step.nccl and phase in IN_PIECES else 0
        way = [_middle(step, sender), _middle(step, device)]
        source, target = reversed(way) if phase in HOME else way
        x = source + (target - source) * min(1, (now - begin) / (end - begin))
        text, kind = SENT[phase]
        look = {"passes": True} if end <= now else {"text": text, "size": 13}  # words of several would overlap
        yield box(f"{phase} to {device}", x - wide / 2, BUS - 12, wide, 24, fill=KINDS[kind], line="#ffffff", layer=1,
                  **look, **{"from": {"x": source - wide / 2}})


def _said(step, now):
    """Title and note of a frame."""
    number = len(step.held)
    if now == 0:
        return {"title": f"Before the step: device 0 has the model, and a batch of {step.batch}", "note": ASSUMED}
    if now >= step.end:
        took, total = busy(step.events)
        alone = step.alone[-1][3]
        sizes = [written_size(sum(kinds.values())) for kinds in step.held]
        return {"title": f"{number} devices took {total:.1f} ms, one alone {alone:.1f} ms: "
                         f"{alone / total:.2f} times the speed",
                "note": f"Device 1 waited for {1 - took[1] / total:.0%} of the step. Device 0 holds {sizes[0]}, "
                        f"device 1 {sizes[1]}."}
    device, phase = next((event[:2] for event in reversed(step.events) if event[2] < now <= event[3]), (0, None))
    if not phase:
        return {"title": f"{now:.1f} ms: {number} devices are done", "note": "One device alone is still busy."}
    note = IN_PIECES[phase] if step.nccl and phase in IN_PIECES else SAID[phase].format(device=device)
    return {"title": f"{now:.1f} ms: {phase}", "note": note}


def data_parallel_explorer():
    """DataParallel explorer: a step on several devices; what travels between them, what each one holds, does and waits
    for, and one device alone for comparison."""
    controls = {
        "devices": slider("devices", 4, range(2, 9)),
        "batch": slider("batch size", 64, [2, 3, 5, 8, 9, 16, 32, 64, 128, 256]),
        "output": slider("thousand outputs a sample", 1000, [
            (number, 1000 * number) for number in (1, 10, 50, 100, 200, 300, 500, 1000)]),
        "uses": slider("uses of a weight", 100, [1, 10, 100, 1000]),
        "link": buttons("link", next(iter(LINKS)), LINKS),
    }
    presets = {
        "a small batch": preset("Press Play. Compare blue and red. What takes most of the step?", batch=8),
        "many outputs": preset("Press Play. What does device 0 hold that the others do not?", output=1_000_000),
        "fast links": preset("Press Play. What is left of the red parts, and who still waits?",
                             link="NVLink 4, NCCL", uses=1000),
        "5 samples": preset("Press Play. Which device has nothing to do?", batch=5, uses=1000),
    }
    return Stage("data_parallel_explorer", data_parallel_explorer.__doc__, scene, controls,
                 look="Press Play. Which device is full first? Which one works while the others wait?",
                 presets=presets)
