"""The exercises of DataParallel: what it does with a batch, a model and a checkpoint."""

import copy
import re
from collections import OrderedDict
from pprint import pformat

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from helpers.exercises.alone import Alone
from helpers.exercises.tables import Table, each, nothing, same
from helpers.instruments.memory import held_bytes

STAYS = "`pop`, `del` and assignments change what you were given: make something new"
CUT = "a `detach()`, `.data`, `no_grad()` or a new tensor made from numbers: the way back ends there"
SAMPLE = {"float32": (2,), "int64": (), "float64": (1, 2), "bfloat16": (3,), "bool": (), "float16": (1,)}
"""The shape of one sample of each dtype, in what `made` makes."""
KIND = ("each device gets the same kind of thing, with its own samples, in the dtype that they have in "
        "`inputs`. (And `[{}] * 2` is one dict, twice.)")
JOINED = "return joined(outputs)"
CHUNK, PREFIX = "value.chunk(n_devices)", 'name.removeprefix("module.")'


def replica_of(module, device):
    """A copy of a module, as DataParallel makes it: its weights are copies that lead back to the module's."""
    def copied(tensor):
        return None if tensor is None else tensor.view_as(tensor) if device == 0 else tensor.clone()

    replica = copy.copy(module)
    replica._parameters = {name: copied(tensor) for name, tensor in module._parameters.items()}
    replica._buffers = {name: copied(tensor) for name, tensor in module._buffers.items()}
    replica._modules = {name: None if child is None else replica_of(child, device)
                        for name, child in module._modules.items()}
    return replica


def made(plan, samples, start=0):
    """The nested value `plan`, with tensors of so many samples where it names dtypes; for 0, scalars."""

    def tensor(leaf):
        if leaf not in SAMPLE:
            return leaf
        zeros = torch.zeros((samples, *SAMPLE[leaf]) if samples else ())
        numbers = start + torch.arange(zeros.numel()).view_as(zeros)
        values = (numbers % 3 if leaf == "bool" else numbers).to(getattr(torch, leaf))
        return values.requires_grad_(values.is_floating_point())

    return tree_map(tensor, plan)


def tensors(value):
    """All tensors in a nested value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def shown(value):
    """A nested value as text: the same text, the same kinds, names, dtypes, shapes and numbers."""
    plain = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value)
    text = pformat(plain, width=10**6)  # which sorts the names in dicts
    return re.sub(r"\s+", " ", text).replace("[ ", "[")


def unreached(value, sources):
    """The indices of those tensors of `sources` to which no gradient leads back from `value`."""
    ends = [tensor.sum() for tensor in tensors(value) if tensor.requires_grad]
    total = sum(ends) + torch.zeros(1, requires_grad=True)

    def reached(source):
        return torch.autograd.grad(total, source, retain_graph=True, materialize_grads=True)[0].any()

    return [index for index, source in enumerate(sources) if not source.requires_grad or not reached(source)]


def no_list(mine, wanted, case):
    if mine["returned"] not in ("list", "tuple"):
        return f"it returned a {mine['returned']}", "a list, with one item per device"


def other_sizes(mine, wanted, case):
    if mine["sizes"] != wanted["sizes"]:
        return (f"{len(mine['sizes'])} parts for {case[2]} devices, of sizes {mine['sizes']}",
                f"{len(wanted['sizes'])} parts, of sizes {wanted['sizes']}")


class ScatterNested(Table, Alone):
    title = "Scatter: who gets which samples?"
    task = ("Share `inputs` out among at most `n_devices` devices. Return a list with one item for each "
            "device that gets samples. Cut a tensor along dimension 0, as `torch.chunk` does. From a tuple, "
            "a list or a dict, every device gets the same kind of thing, with its part of each tensor. "
            "Tuples, lists and dicts may contain each other. Anything else, for example a number, goes to "
            "every device as it is. Gradients flow back through the parts. Leave `inputs` alone.")
    hints = ("`inputs.chunk(n_devices)` does all that a tensor needs, also with fewer samples than devices.",
             "For a tuple, scatter each of its items. You get a list of lists: by item, then by device. "
             "`zip(*…)` turns it around. A dict's values go the same way.",
             "A number has no parts: `[value] * n_devices` gives it to all. `zip` ends with the shortest "
             "list.")
    explanation = ("The inner function calls itself for what lies inside. `zip` turns \"by item\" into \"by "
                   "device\" and ends with the shortest list, so a device without samples gets no number. "
                   "The library does the same.")
    why = ("scatter cuts every tensor along dimension 0. If the batch is another dimension, or a tensor is "
           "not per sample at all, it is cut as well, and nothing warns. And 9 samples on 4 devices leave "
           "one device idle.")
    cases = {"4 samples on 2 devices": ("float32", 4, 2), "5 samples on 4 devices": ("float64", 5, 4),
             "9 samples of whole numbers on 4 devices": ("int64", 9, 4),
             "2 samples on 4 devices": ("bfloat16", 2, 4),
             "a tuple of two tensors": (("float32", "int64"), 6, 3),
             "a dict with a number": ({"scale": 0.5, "x": "float64", "mask": None}, 5, 4),
             "things in things": (({"x": "float32", "y": ("float64",)}, ["bool", "train"]), 3, 2)}

    def answer(inputs, n_devices):
        import torch

        def parts(value):
            if isinstance(value, torch.Tensor):
                return value.chunk(n_devices)
            if isinstance(value, dict) and value:
                return [dict(zip(value, item)) for item in zip(*map(parts, value.values()))]  # noqa: B905
            if isinstance(value, (tuple, list)) and value:
                return [type(value)(item) for item in zip(*map(parts, value))]  # noqa: B905
            return [value] * n_devices

        return list(parts(inputs))

    def observe(scatter_nested, case):
        plan, samples, n_devices = case
        inputs = made(plan, samples)
        sources = [tensor for tensor in tensors(inputs) if tensor.requires_grad]
        returned = scatter_nested(inputs, n_devices)
        parts = returned if isinstance(returned, list | tuple) else []
        return {
            "inputs": shown(inputs),
            "returned": type(returned).__name__,
            "sizes": [sum(map(len, tensors(part)[:1])) for part in parts],
            "part of device": [shown(part) for part in parts],
            "devices without a gradient": [at for at, part in enumerate(parts) if unreached(part, sources)]}

    rules = (
        same("inputs", STAYS),
        each(no_list, "the line with `return`"),
        each(other_sizes, "one item per device that gets samples, of the sizes that `torch.chunk` makes; and "
             "`zip` ends with the shortest"),
        same("part of device", KIND),
        nothing("devices without a gradient", CUT, "gradients flow from each part to `inputs`"))
    mistakes = (
        (CHUNK, "[value[device::n_devices] for device in range(n_devices)]",
         "neighbouring samples stay together: `torch.chunk` cuts blocks"),
        (CHUNK, "value.tensor_split(n_devices)",
         "`torch.chunk` rounds a block's size up, and may leave a device idle; `tensor_split` is fairer"),
        (CHUNK, "value.split(max(1, len(value) // n_devices))", "`torch.chunk` rounds a block's size up"),
        (CHUNK, f"[part.detach() for part in {CHUNK}]", "`detach()` cuts the way back to `inputs`"),
        ("[value] * n_devices", "[value]", "what has no parts goes to every device; `zip` ended after one"),
        ("[type(value)(item) for", "[item for", "`zip` makes tuples: is the part of a list a list?"))
    stops = (
        ("list(parts(inputs))", "list(inputs.chunk(n_devices))", "'tuple' object has no attribute",
         "a tuple, a list or a dict has no parts of its own: scatter each thing that lies in it"),
        ("[value] * n_devices", "value.chunk(n_devices)", "'float' object has no attribute",
         "a number has no parts: each device gets it as it is"))


class GatherNested(Table, Alone):
    title = "Gather: one output from many"
    task = ("`outputs` is a list with what each device's replica has returned: tensors, or tuples, lists or "
            "dicts of tensors, which may contain each other. All replicas return the same kind. Return one "
            "of that kind, in which the tensors of all devices are joined along dimension 0, in the "
            "devices' order. `None` stays `None`. If the replicas return scalars, tensors without a "
            "dimension, return a vector with one element per device, as the library does. `backward` must "
            "reach every device. Leave `outputs` alone.")
    hints = ("`torch.cat` joins tensors whose sizes differ in dimension 0 only. Give scalars a dimension.",
             "For dicts, gather the values of one name from all devices, then those of the next. For tuples, "
             "`zip(*outputs)` brings the first items together, then the second ones.")
    explanation = ("The first device's output says which kind it is. `torch.cat` is differentiable: its "
                   "backward cuts the gradient and hands each device its part. So a gather needs no code for "
                   "the way back.")
    why = ("the backward of a gather is a scatter, and that of a scatter is a gather. And now you know where "
           "`Was asked to gather along dimension 0, but all input tensors were scalars` comes from: losses "
           "of replicas.")
    cases = {"two devices": ("float32", (2, 2)), "uneven chunks": ("float64", (2, 1, 2)),
             "whole numbers": ("int64", (2, 2, 1)), "scalars": ("float64", (0, 0, 0)),
             "a scalar from one device": ("float32", (0,)), "tuples": (("float32", "bool"), (2, 2, 1)),
             "lists": (["bfloat16"], (2, 2, 1)), "one number from each device": ("float16", (1, 1)),
             "names in another order": ({"right": "bool", "label": "int64"}, (2, 1)),
             "things in things": ({"logits": "float32", "hidden": ["float64"], "attention": None}, (2, 2, 1)),
             "scalars in a dict": ({"loss": "float32", "right": ("int64",)}, (0, 0, 0))}

    def answer(outputs):
        import torch

        def joined(values):
            first = values[0]
            if isinstance(first, torch.Tensor):
                return torch.cat([value.reshape(1) if value.dim() == 0 else value for value in values])
            if first is None:
                return None
            if isinstance(first, dict):
                return {name: joined([value[name] for value in values]) for name in first}
            return type(first)(joined(items) for items in zip(*values))  # noqa: B905

        return joined(outputs)

    def observe(gather_nested, case):
        plan, sizes = case
        outputs = [made(plan, samples, 10 * device) for device, samples in enumerate(sizes)]
        if isinstance(plan, dict):  # the same names, in another order
            outputs[1:] = [dict(reversed(output.items())) for output in outputs[1:]]
        sources = [[tensor for tensor in tensors(output) if tensor.requires_grad] for output in outputs]
        returned = gather_nested(outputs)
        return {
            "outputs": shown(outputs),
            "returned": shown(returned),
            "devices without a gradient": [at for at, own in enumerate(sources) if unreached(returned, own)]}

    rules = (
        same("outputs", STAYS),
        same("returned", "along which dimension, and in which order, tensors are joined (a dict's by their "
             "names); the result's kind, dtype and number of dimensions"),
        nothing("devices without a gradient", CUT, "`backward` reaches every device"))
    mistakes = (
        ("value.dim() == 0", "value.numel() == 1", "one number may have a dimension: only a scalar has none"),
        ("value for value in values]", "value.detach() for value in values]", "`detach()` cuts the way back"),
        ("return torch.cat([", "return sum(values) / len(values) if first.dim() == 0 else torch.cat([",
         "scalars become a vector, with one element per device: nobody takes the mean"),
        ("type(first)(joined", "list(joined", "the result is of the kind that the devices gave"))
    stops = (
        ("value.reshape(1) if value.dim() == 0 else value", "value", "zero-dimensional tensor",
         "`torch.cat` refuses scalars: give them a dimension"),
        (JOINED, "return torch.stack(outputs)", "stack expects each tensor to be equal size",
         "`torch.stack` makes another dimension: samples are joined along one that is there"),
        (JOINED, "return torch.cat(outputs) if outputs[0].dim() else torch.stack(outputs)",
         "'tuple' object has no attribute", "gather a tuple item by item: the first ones of all devices …"),
        ("if first is None", "if first is ...", "'NoneType' object is not iterable", "`None` stays `None`"))


def is_very(value, tensor):
    """Whether `value` is this very tensor, or another view of its memory."""
    return (isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr()
            and shown(value) == shown(tensor))


def kind_of(returned, state):
    if returned is state:
        return "`state` itself"
    return "" if isinstance(returned, dict) else f"a {type(returned).__name__}"


class WithoutPrefix(Table, Alone):
    title = "A checkpoint with `module.`"
    task = ("`state` is a state dict. The model was wrapped when it was saved, so all names, some, or none "
            "begin with `module.`. Return a new dict in which that one prefix is gone from the beginning of "
            "each such name. All else stays as it is, and the tensors are the very same, not copies. Leave "
            "`state` itself alone: somebody may still want to load it into a wrapped model.")
    hints = ("`name.replace(\"module.\", \"\")` also finds it in the middle of a name. `lstrip` takes "
             "letters, not words.",
             "Strings have a method that does just this: try `\"module.a\".removeprefix(\"module.\")`, and "
             "the same with `\"submodule.a\"`.")
    explanation = ("`removeprefix` takes away the prefix once, and only at the beginning. Torch has "
                   "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`, which changes the dict "
                   "that it is given.")
    why = ("`Missing key(s) … Unexpected key(s) \"module.…\"` comes from saving the wrapper. It is better to "
           "save `wrapped.module.state_dict()`. A plain model loads it as it is, a wrapped one by "
           "`wrapped.module.load_state_dict(…)`.")
    cases = {"a state dict saved from a DataParallel": ("module.conv.weight", "module.conv.bias"),
             "one saved without": ("conv.weight", "conv.bias"),
             "a mixture": ("conv.weight", "module.dense.weight", "module.dense.bias"),
             "a part called `submodule`": (
                 "submodule.weight", "module.submodule.bias", "encoder.module.weight"),
             "a part called `module`": ("module.module.weight", "module.mode.bias", "modules.0.bias",
                                        "modules.0.module.weight")}

    def answer(state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}

    def observe(without_prefix, names):
        values = [made(dtype, 2).detach() for dtype in SAMPLE]
        state = OrderedDict(zip(names, values, strict=False))
        state._metadata = {"": {"version": 1}, "module": {"version": 2}}  # as `state_dict()` gives it
        tensor_of, before = dict(state), shown([dict(state), state._metadata])
        returned = without_prefix(state)
        result = returned if isinstance(returned, dict) else {}
        new_names = {name: [new for new, value in result.items() if is_very(value, tensor)]
                     for name, tensor in tensor_of.items()}
        kept = {new for found in new_names.values() for new in found}
        return {
            "returned": kind_of(returned, state),
            "`state` has changed": shown([dict(state), state._metadata]) != before,
            "no tensor of `state`": [new for new in result if new not in kept],
            "new name of": {name: " and ".join(found) or "missing" for name, found in new_names.items()}}

    rules = (
        nothing("returned", f"the `return`; {STAYS}", "a new dict of tensors by name"),
        nothing("`state` has changed", f"{STAYS}; a `copy.copy` shares `_metadata`", "it stays as it was"),
        nothing("no tensor of `state`", "what you do with the tensors, and what you add",
                "the very tensors, not copies"),
        same("new name of", "each name by itself: only at the beginning, only the whole word with its dot, "
             "only once"),
    )
    mistakes = (
        (PREFIX, 'name.replace("module.", "")', "`replace` also finds it in the middle of a name"),
        (PREFIX, "name[7:]", "not every name begins with `module.`"),
        (PREFIX, 'name.lstrip("module.")', "`lstrip` takes letters away, not a word"),
        (PREFIX, '(name.replace("module.", "", 1) if name.startswith("module") else name)',
         "`modules` begins with `module` as well: the dot belongs to the prefix"),
        (".items()}", '.items() if name.startswith("module.")}', "names without the prefix stay as they are"),
        (": tensor for", ": tensor.clone() for", "`clone` and `deepcopy` make copies"),
        ("return {", "for name in list(state):\n        state[name.removeprefix('module.')] = "
         "state.pop(name)\n    return {", STAYS),
    )


def counted_step(model, batch, n_devices, states):
    """By device, the bytes of each kind that a step of DataParallel puts there, counted from its tensors."""
    kinds = "weights", "gradients", "activations", "output", "gathered", "optimizer"
    held, outputs = [dict.fromkeys(kinds, 0) for _ in range(n_devices)], []
    for device, chunk in enumerate(batch.chunk(n_devices)):
        replica = replica_of(model, device)
        with held_bytes() as alive:
            output = replica(chunk.clone())
        activations = alive.now - output.nbytes  # what else is alive, backward needs
        gradients = torch.autograd.grad(output.sum(), list(replica.parameters()))
        held[device] |= {
            "weights": sum(weight.nbytes for weight in replica.parameters()),
            "gradients": sum(gradient.nbytes for gradient in gradients),
            "activations": activations, "output": output.nbytes}
        outputs.append(output)
    held[0] |= {"gathered": torch.cat(outputs).nbytes, "optimizer": states * held[0]["weights"]}
    return held


def other_bytes(mine, wanted, case):
    if len(mine["bytes"]) != case[1]:
        return f"{len(mine['bytes'])} items", f"{case[1]}, one for each device, used or not"
    for device, (said, held) in enumerate(zip(mine["bytes"], mine["held"], strict=True)):
        right = sum(held.values())
        if said != right:
            kinds = ", ".join(f"{name} {size:,}" for name, size in held.items() if size)
            return (f"you say {said:,.0f} bytes for device {device}",
                    f"{right:,}, of which {kinds}" if kinds else "0: it gets no sample")


class DeviceMemory(Table, Alone):
    title = "What does device 0 have to hold?"
    task = ("One training step of `nn.DataParallel` on two devices or more. All sizes are in bytes: "
            "`weights` is the whole model's, `activations` and `output` are those of **one sample**. The "
            "optimizer keeps `states` tensors for each weight (SGD 0, with momentum 1, Adam 2). Each device "
            "that gets samples holds a copy of the weights, its gradients, and its own samples' activations "
            "and output. Device 0 holds the original in place of a copy, and also the gathered output and "
            "the optimizer's state. Leave out what the loss keeps. Return a list of `n_devices` items: the "
            "bytes on each device.")
    hints = ("How many samples has each device? `torch.chunk` rounds up: `-(-batch // n_devices)` each, "
             "until none are left.",
             "A device without samples gets no replica and holds nothing: 9 samples on 4 devices are 3, 3, 3 "
             "and 0.",
             "The gathered output is the output of the whole batch. Device 0 has its own part besides.")
    explanation = ("Every device that works holds everything but the optimizer's state and the gathered "
                   "output. The check counted the real tensors of a step that it ran by hand.")
    why = ("the batch must be small enough for device 0, and the others' memory stays unused. If the output "
           "is large, as with a vocabulary, compute the loss inside the replicas, per sample or as a sum, or "
           "use DistributedDataParallel.")
    cases = {f"{batch} samples on {devices} devices, {states} state{'s' * (states != 1)} per weight":
             (batch, devices, states) for batch, devices, states in
             ((8, 4, 0), (8, 4, 2), (5, 4, 1), (9, 4, 2), (2, 3, 1), (20, 8, 2))}

    def answer(batch, n_devices, weights, activations, output, states):
        each, held, left = -(-batch // n_devices), [], batch
        for _ in range(n_devices):
            samples = min(each, left)
            left -= samples
            held.append(2 * weights + samples * (activations + output) if samples else 0)
        held[0] += batch * output + states * weights
        return held

    def observe(device_memory, case):
        batch, n_devices, states = case
        width = 30 + batch  # another model in every case
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU(),
                              nn.Linear(32, 24))
        samples = torch.rand(batch, 16)
        one = counted_step(model, samples[:1], 1, 0)[0]
        sizes = device_memory(batch, n_devices, one["weights"], one["activations"], one["output"], states)
        return {
            "bytes": [float(size + 0) for size in sizes],  # text is no number: it has no sum with 0
            "held": counted_step(model, samples, n_devices, states)}

    rules = (each(other_bytes, "which of these do you forget, count twice or share out? And is each for this "
                               "device's samples, or for all?"),)
    mistakes = (
        ("batch * output + states", "states", "device 0 also gathers the output of the whole batch"),
        ("held[0] += batch", "held[0] += 2 * batch",
         "the gathered output counts once: what the loss keeps of it is left out here"),
        ("(activations + output)", "activations", "each device holds the output of its own samples"),
        ("2 * weights", "weights", "each device holds gradients, too: as much as its weights"),
        ("2 * weights", "(2 + states) * weights", "the optimizer works on device 0 alone, on the original"),
        (" if samples else 0", "", "`torch.chunk` leaves some devices without a sample: they get no replica"),
        ("-(-batch // n_devices)", "batch // n_devices", "`torch.chunk` rounds up"),
        ("samples * (activations + output)", "each * (activations + output)",
         "the last device that gets samples may get fewer"),
    )


scatter_nested, gather_nested, without_prefix = ScatterNested(), GatherNested(), WithoutPrefix()
device_memory = DeviceMemory()
