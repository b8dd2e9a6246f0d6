"""The bytes that a step of DataParallel puts on each device, and that device 0 has the most."""

import copy

import torch
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import each
from helpers.instruments.memory import held_bytes


def replica_of(module, device):
    """A copy of a module, as DataParallel makes it: its weights are copies that lead back to the module's."""

    def copied(tensor):
        if tensor is None:
            return None
        if device == 0:
            return tensor.view_as(tensor)
        return tensor.clone()

    replica = copy.copy(module)
    replica._parameters = {name: copied(tensor) for name, tensor in module._parameters.items()}
    replica._buffers = {name: copied(tensor) for name, tensor in module._buffers.items()}
    replica._modules = {}
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replica_of(child, device)
    return replica


def counted_step(model, batch, n_devices, states):
    """By device, the bytes of each kind that a step of DataParallel puts there, counted from its tensors."""
    kinds = "weights", "gradients", "activations", "output", "gathered", "optimizer"
    by_device = [dict.fromkeys(kinds, 0) for _ in range(n_devices)]
    outputs = []
    for device, chunk in enumerate(batch.chunk(n_devices)):
        replica = replica_of(model, device)
        with held_bytes() as held:
            output = replica(chunk.clone())
        activations = held.now - output.nbytes  # what else is alive, backward needs
        gradients = torch.autograd.grad(output.sum(), list(replica.parameters()))
        by_device[device].update(
            weights=sum(weight.nbytes for weight in replica.parameters()),
            gradients=sum(gradient.nbytes for gradient in gradients),
            activations=activations,
            output=output.nbytes,
        )
        outputs.append(output)
    by_device[0].update(gathered=torch.cat(outputs).nbytes, optimizer=states * by_device[0]["weights"])
    return by_device


class DeviceMemory(Alone):
    title = "What does device 0 have to hold?"
    task = ("One training step of `nn.DataParallel` on two devices or more. All sizes are in bytes: "
            "`weights` is the whole model's, `activations` and `output` are those of **one sample**. The "
            "optimizer keeps `states` tensors for each weight (SGD 0, with momentum 1, Adam 2). Each device "
            "that gets samples holds a copy of the weights, its gradients, and its own samples' activations "
            "and output. Device 0 holds the original in place of a copy, and also the gathered output and "
            "the optimizer's state. Leave out what the loss keeps, and the gradients of outputs. Return a list "
            "of `n_devices` items: the bytes on each device.")
    hints = (
        "How many samples has each device? `torch.chunk` rounds up: `-(-batch // n_devices)` each, until none are "
        "left.",
        "A device without samples gets no replica and holds nothing: 9 samples on 4 devices are 3, 3, 3 and 0.",
        "The gathered output is the output of the whole batch. Device 0 has its own part besides.",
    )
    explanation = ("Every device that works holds everything but the optimizer's state and the gathered "
                   "output. The check counted the real tensors of a step that it ran by hand, but computed the "
                   "optimizer's.")
    why = ("the batch must be small enough for device 0, and part of the others' memory stays unused. If the output "
           "is large, as with a vocabulary, compute the loss inside the replicas, per sample or as a sum, or "
           "use DistributedDataParallel.")

    # `batch`, `n_devices` and `states`.
    cases = {
        "8 samples on 4 devices, 0 states per weight": (8, 4, 0),
        "8 samples on 4 devices, 2 states per weight": (8, 4, 2),
        "5 samples on 4 devices, 1 state per weight": (5, 4, 1),
        "9 samples on 4 devices, 2 states per weight": (9, 4, 2),
        "2 samples on 3 devices, 1 state per weight": (2, 3, 1),
        "20 samples on 8 devices, 2 states per weight": (20, 8, 2),
    }

    def answer(batch, n_devices, weights, activations, output, states):
        each = -(-batch // n_devices)                                                           #: chunk
        left = batch
        held = []
        for _ in range(n_devices):
            samples = min(each, left)
            left -= samples
            held.append(2 * weights + samples * (activations + output) if samples else 0)       #: hold
        held[0] += batch * output + states * weights                                            #: first
        return held

    def observe(device_memory, case):
        batch, n_devices, states = case
        width = 30 + batch  # another model in every case
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 24))
        samples = torch.rand(batch, 16)
        [sample] = counted_step(model, samples[:1], 1, 0)

        sizes = device_memory(batch, n_devices, sample["weights"], sample["activations"], sample["output"], states)

        return {
            "returned": kind_of(sizes),
            "bytes": [size if isinstance(size, str) else float(size) for size in sizes],
            "held": counted_step(model, samples, n_devices, states),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def a_dict(mine, wanted, case):
        if mine["returned"] == "a dict":
            return "it returned a dict", "a list: the bytes of device 0, of device 1 …"

    def other_bytes(mine, wanted, case):
        _, n_devices, _ = case
        if len(mine["bytes"]) != n_devices:
            return f"{len(mine['bytes'])} items", f"{n_devices}, one for each device, used or not"
        for device, (answered, held) in enumerate(zip(mine["bytes"], mine["held"], strict=True)):
            right = sum(held.values())
            if answered == right:
                continue
            if isinstance(answered, str):
                return f"you say the text {answered!r} for device {device}", "numbers, in bytes"
            observed = f"you say {answered:,.15g} bytes for device {device}"
            if right == 0:
                return observed, "0: it gets no sample"
            kinds = ", ".join(f"{name} {size:,}" for name, size in held.items() if size)
            return observed, f"{right:,}, of which {kinds}"

    rules = (
        each(a_dict, "the line with `return`"),
        each(other_bytes, "which of these do you forget, count twice or share out? And is each for this device's "
                          "samples, or for all?"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("device 0 also gathers the output of the whole batch", first="held[0] += states * weights"),
        mistake("the gathered output counts once: what the loss keeps of it is left out here",
                first="held[0] += 2 * batch * output + states * weights"),
        mistake("each device holds the output of its own samples",
                hold="held.append(2 * weights + samples * activations if samples else 0)"),
        mistake("each device holds gradients, too: as much as its weights",
                hold="held.append(weights + samples * (activations + output) if samples else 0)"),
        mistake("the optimizer works on device 0 alone, on the original",
                hold="held.append((2 + states) * weights + samples * (activations + output) if samples else 0)"),
        mistake("`torch.chunk` leaves some devices without a sample: they get no replica",
                hold="held.append(2 * weights + samples * (activations + output))"),
        mistake("`torch.chunk` rounds up", chunk="each = batch // n_devices"),
        mistake("the last device that gets samples may get fewer",
                hold="held.append(2 * weights + each * (activations + output) if samples else 0)"),
    )


device_memory = DeviceMemory()
