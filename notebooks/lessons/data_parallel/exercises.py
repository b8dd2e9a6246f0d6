"""The exercises of DataParallel: what nn.DataParallel does with a batch, a model and a checkpoint; two real bugs."""

import contextlib
import copy
import io
import re
from collections import OrderedDict
from pprint import pformat

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from helpers.exercises.engine import Exercise, not_yet
from helpers.instruments.calls import counted_calls
from helpers.instruments.memory import held_bytes


class InOneRank(Exercise):
    """One rank, whose devices are stand-ins. What its probe finds wrong, it returns, as `not_yet` takes it."""

    timeout = 15

    @classmethod
    def run(cls, answer, case, slowly):
        found = cls.probe(answer, case)
        return not_yet(*found) if found else None


def replica_of(module, device):
    """A copy of a module whose weights are copies that lead back to the module's, as DataParallel makes it."""
    def copied(tensor):
        return None if tensor is None else tensor.view_as(tensor) if device == 0 else tensor.clone()

    replica = copy.copy(module)
    replica._parameters = {name: copied(tensor) for name, tensor in module._parameters.items()}
    replica._buffers = {name: copied(tensor) for name, tensor in module._buffers.items()}
    replica._modules = {name: None if child is None else replica_of(child, device)
                        for name, child in module._modules.items()}
    return replica


#: The shape of one sample of each dtype, in what `made` makes.
SAMPLE = {"float32": (2,), "int64": (), "float64": (1, 2), "bfloat16": (3,), "bool": (), "float16": (1,)}
#: Expected, and where to look, where what was given has changed.
STAYS = "it stays as it was; what you return is new", "`pop`, `del`, assignments into it, and functions that do that"


def made(plan, samples, start=0):
    """The nested value `plan`, with tensors of so many samples where it names dtypes; with 0 samples, scalars."""

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
    return re.sub(r"\s+", " ", pformat(plain, width=10**6)).replace("[ ", "[")  # pformat sorts the names in dicts


def unreached(value, sources):
    """Those names of `sources`, pairs of a name and a tensor, to which no gradient leads back from `value`."""
    ends = [tensor for tensor in tensors(value) if tensor.requires_grad]
    total = sum(tensor.sum() for tensor in (*ends, torch.zeros(1, requires_grad=True)))
    return [name for name, source in sources if not source.requires_grad or not torch.autograd.grad(
        total, source, retain_graph=True, materialize_grads=True)[0].any()]


class ScatterNested(InOneRank):
    title = "Scatter: who gets which samples?"
    task = ("Share `inputs` out among at most `n_devices` devices. Return a list with one item for each device that "
            "gets samples. A tensor is cut along dimension 0, as `torch.chunk` cuts it. From a tuple, a list or a dict "
            "(they may hold each other) every device gets one of the same kind, with its part of each tensor. What is "
            "neither, a number for example, every device gets as it is. Gradients flow back through the parts. "
            "Leave `inputs` alone.")
    hints = (
        "`inputs.chunk(n_devices)` does all that a single tensor needs, also with fewer samples than devices.",
        "For a tuple, scatter each of its items; that gives a list by item of lists by device. `zip(*…)` turns it into "
        "a list by device. A dict's values go the same way.",
        "A number has no parts: `[value] * n_devices` gives it to all; `zip` stops where the shortest list ends.",
    )
    explanation = ("The inner function calls itself for what lies inside. `zip` turns \"by item\" into \"by device\", "
                   "and ends with the shortest list: a device without samples gets no number. So does the library.")
    why = ("only tensors are cut, and only along dimension 0: a tensor in which the batch stands elsewhere, or one "
           "that is not per sample at all, is cut as well, silently. And 9 samples on 4 devices leave one idle.")
    cases = {"4 samples on 2 devices": ("float32", 4, 2), "5 samples on 4 devices": ("float64", 5, 4),
             "9 samples of whole numbers on 4 devices": ("int64", 9, 4), "2 samples on 4 devices": ("bfloat16", 2, 4),
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

    def probe(scatter_nested, case):
        plan, samples, n_devices = case
        inputs = made(plan, samples)
        before, wanted = shown(inputs), ScatterNested.answer(inputs, n_devices)
        got = scatter_nested(inputs, n_devices)
        if shown(inputs) != before:
            return "`inputs` itself has changed", *STAYS
        if not isinstance(got, list | tuple):
            return f"it returned {shown(got)}", "a list, with one item per device", "the line with `return`"
        if len(got) != len(wanted):
            mine, right = ([sum(tensor.shape[:1]) for part in parts for tensor in tensors(part)[:1]]
                           for parts in (got, wanted))
            return (f"{len(got)} part{'s' * (len(got) != 1)} for {n_devices} devices, of sizes {mine}",
                    f"{len(wanted)} parts, of sizes {right}",
                    "one item per device that gets samples; sizes as `torch.chunk` makes them"
                    + "; what has no parts goes to each, and `zip` ends with the shortest" * (len(got) < len(wanted)))
        for device, (mine, right) in enumerate(zip(got, wanted, strict=True)):
            if shown(mine) != shown(right):
                return (f"device {device} got `{shown(mine)}`", f"`{shown(right)}`",
                        "neighbouring samples stay together; each device gets the same kind of thing, of one dtype; "
                        "what has no parts goes to each as it is; and `[{}] * 2` is one dict, twice")
            if unreached(mine, [(None, one) for one in tensors(inputs) if one.requires_grad]):
                return (f"no gradient comes back through device {device}'s part",
                        "parts that lead back to `inputs`, as `chunk` makes them",
                        "a `detach()`, `.data`, `no_grad()`, `copy`, or new tensor made from numbers")
        return None


class GatherNested(InOneRank):
    title = "Gather: one output from many"
    task = ("`outputs` is a list with what each device's replica has returned: tensors; or tuples, lists or dicts of "
            "such, the same kind from each (they may hold each other). Return one of that kind, in which the "
            "tensors of all devices are joined along dimension 0, in the devices' order. `None` stays `None`. "
            "Where the replicas return scalars, tensors without a dimension, return a vector with one element per "
            "device, as the library does. `backward` has to find its way back to every device. Leave `outputs` alone.")
    hints = (
        "`torch.cat` joins tensors whose sizes differ in dimension 0 only. It refuses scalars: give them a dimension.",
        "For dicts: gather the values of one name from all devices, then of the next. For tuples, `zip(*outputs)` "
        "brings the first items together, then the second ones.",
    )
    explanation = ("The first device's output says which kind it is. `torch.cat` is differentiable: its backward cuts "
                   "the gradient and hands each device its part, so a gather needs no code for the way back.")
    why = ("the backward of a gather is a scatter, and that of a scatter is a gather. And now you know whence comes "
           "`Was asked to gather along dimension 0, but all input tensors were scalars`: losses from replicas.")
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

    def probe(gather_nested, case):
        plan, sizes = case
        outputs = [made(plan, samples, 10 * device) for device, samples in enumerate(sizes)]
        outputs[1:] = [dict(reversed(one.items())) if isinstance(one, dict) else one for one in outputs[1:]]  # by name
        sources = [(device, tensor) for device, output in enumerate(outputs) for tensor in tensors(output)
                   if tensor.requires_grad]
        before, wanted = shown(outputs), GatherNested.answer(outputs)
        got = gather_nested(outputs)
        if shown(outputs) != before:
            return "`outputs` itself has changed", *STAYS
        if shown(got) != shown(wanted):
            return (f"it returned `{shown(got)}`", f"`{shown(wanted)}`",
                    "along which dimension, and in which order, tensors are joined (a dict's by their names); "
                    "the result's kind, dtype and number of dimensions")
        lost = unreached(got, sources)
        return (f"`backward` does not reach device {lost[0]}", "gradients on every device",
                "a `detach()`, `tolist()` or new tensor made from numbers") if lost else None


class WithoutPrefix(InOneRank):
    title = "A checkpoint with `module.`"
    task = ("`state` is a state dict in which names may begin with `module.`, because the model was wrapped when it "
            "was saved; all names, some, or none. Return a new dict in which that one prefix is gone from the "
            "beginning of each such name; all else is as before, and the tensors are the very same, not copies. "
            "`state` itself stays as it is: somebody may still want to load it into a wrapped model.")
    hints = (
        "`name.replace(\"module.\", \"\")` also finds it in the middle of a name; `lstrip` takes letters, not words.",
        "Python 3.9 brought a method of strings that does just this. What does "
        "`\"module.a\".removeprefix(\"module.\")` give, and what `\"submodule.a\"…`?",
    )
    explanation = ("`removeprefix` takes away the prefix once, and only at the beginning. Torch has "
                   "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`, which changes the dict that it "
                   "is given.")
    why = ("`Missing key(s) … Unexpected key(s) \"module.…\"` comes from saving the wrapper. The better cure is on the "
           "other side: save `wrapped.module.state_dict()`, which a plain model loads as it is, and a wrapped one by "
           "`wrapped.module.load_state_dict(…)`.")
    cases = {"a state dict saved from a DataParallel": ("module.conv.weight", "module.conv.bias"),
             "one saved without": ("conv.weight", "conv.bias"),
             "a mixture": ("conv.weight", "module.dense.weight", "module.dense.bias"),
             "a part called `submodule`": ("submodule.weight", "module.submodule.bias", "encoder.module.weight"),
             "a part called `module`": ("module.module.weight", "module.mode.bias", "modules.0.bias",
                                        "modules.0.module.weight")}

    def answer(state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}

    def probe(without_prefix, names):
        state = OrderedDict((name, made(dtype, 2).detach()) for name, dtype in zip(names, SAMPLE, strict=False))
        state._metadata = {"": {"version": 1}, "module": {"version": 2}}  # as `state_dict()` gives it
        before, text, versions = dict(state), shown(state), copy.deepcopy(state._metadata)
        got, became = without_prefix(state), {}
        if not isinstance(got, dict):
            return f"it returned {shown(got)}", "a dict of tensors by name", "the line with `return`"
        if got is state or shown(state) != text:
            return f"`state` itself {'was returned' if shown(state) == text else 'has changed'}", *STAYS
        if state._metadata != versions:
            return "`state._metadata`, the versions of its layers, has changed", *STAYS
        for new, value in got.items():
            old = [name for name in names for one in tensors(value) if before[name].data_ptr() == one.data_ptr()]
            if not old or shown(value) != shown(before[old[0]]):
                return (f"`{new}` holds {shown(value)}, which is a copy, or something else, and no tensor of `state`",
                        "the very tensors of `state`", "what you do with the tensors")
            became.setdefault(old[0], new)
        for name in names:
            new, right = became.get(name), name.removeprefix("module.")
            if new is None:
                return (f"`{name}` is missing", f"`{right}`, with its tensor",
                        "names that you skip, and names that you shorten until two are the same")
            if new != right:
                return (f"`{name}` {'is still there' if new == name else f'became `{new}`'}", f"`{right}`",
                        "each name by itself: only at the beginning, only the whole word with its dot, only once")
        if len(got) != len(names):
            return f"{len(got)} names, {', '.join(got)}", f"as many as `state` has, {len(names)}", "what you add"
        return None


KINDS = {"weights": "its copy of the weights", "gradients": "its gradients", "activations": "its activations",
         "output": "its own output", "gathered": "the gathered output", "optimizer": "the optimizer's state"}


def counted_step(model, batch, n_devices, states):
    """By device, the bytes of each of KINDS that one step of DataParallel puts there, counted from its tensors."""
    held, outputs = [dict.fromkeys(KINDS, 0) for _ in range(n_devices)], []
    for kinds, (device, chunk) in zip(held, enumerate(batch.chunk(n_devices)), strict=False):
        replica = replica_of(model, device)
        with held_bytes() as alive:
            outputs.append(replica(chunk.clone()))
        kinds["output"] = outputs[-1].nbytes
        kinds["activations"] = alive.now - outputs[-1].nbytes  # what else is alive, backward needs
        kinds["weights"] = sum(weight.nbytes for weight in replica.parameters())
        kinds["gradients"] = sum(gradient.nbytes for gradient in torch.autograd.grad(
            outputs[-1].sum(), list(replica.parameters())))
    held[0] |= {"gathered": torch.cat(outputs).nbytes, "optimizer": states * held[0]["weights"]}
    return held


class DeviceMemory(InOneRank):
    title = "What does device 0 have to hold?"
    task = ("One training step of `nn.DataParallel` on two devices or more. All sizes are in bytes: `weights` is the "
            "whole model's, `activations` and `output` are those of **one sample**. The optimizer keeps `states` "
            "tensors for each weight (SGD 0, with momentum 1, Adam 2). Return a list: for each device the bytes of all "
            "that the step puts there. That is, on each device that gets samples, a copy of the weights, its "
            "gradients, and its own samples' activations and output; and on device 0, which holds the original in "
            "place of a copy, the gathered output and the optimizer's state as well. Leave out what the loss keeps. "
            "The list has `n_devices` items.")
    hints = (
        "First, how many samples has each device? `torch.chunk` rounds up: `-(-batch // n_devices)` each, until none "
        "are left.",
        "A device without samples gets no replica and holds nothing: 9 samples on 4 devices are 3, 3, 3 and 0.",
        "The gathered output is the output of the whole batch, and device 0 has its own part besides.",
    )
    explanation = ("Everything but the optimizer's state and the gathered output is on every device that works. The "
                   "check counted the real tensors of a hand-made step; what is alive after the forward pass, less "
                   "the output, are the activations.")
    why = ("the batch has to be as small as device 0 needs it; the others' memory stays unused. With a large output, a "
           "vocabulary for example, that is most of it: compute the loss inside the replicas, per sample or as a sum, "
           "or use DistributedDataParallel.")
    cases = {f"{batch} samples on {devices} devices, {states} tensor{'s' * (states != 1)} per weight in the optimizer":
             (batch, devices, states)
             for batch, devices, states in ((8, 4, 0), (8, 4, 2), (5, 4, 1), (9, 4, 2), (2, 3, 1), (20, 8, 2))}

    def answer(batch, n_devices, weights, activations, output, states):
        each, held, left = -(-batch // n_devices), [], batch
        for _ in range(n_devices):
            samples = min(each, left)
            left -= samples
            held.append(2 * weights + samples * (activations + output) if samples else 0)
        held[0] += batch * output + states * weights
        return held

    def probe(device_memory, case):
        batch, n_devices, states = case
        width = 30 + batch  # another model in every case
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 24))
        samples = torch.rand(batch, 16)
        one, counted = counted_step(model, samples[:1], 1, 0)[0], counted_step(model, samples, n_devices, states)
        got = device_memory(batch, n_devices, one["weights"], one["activations"], one["output"], states)
        if not isinstance(got, list | tuple) or not all(hasattr(size, "__float__") for size in got):
            return f"it returned {shown(got)}", f"a list of {n_devices} numbers", "the `return`"
        if len(got) != n_devices:
            return f"{len(got)} items instead of {n_devices}", "one for each device, used or not", "the last ones"
        for device, (mine, kinds) in enumerate(zip(map(float, got), counted, strict=True)):
            right = sum(kinds.values())
            if mine == right:
                continue
            if right == 0:
                return (f"device {device} gets no sample, and you say {mine:,.0f} bytes", "0",
                        "how many samples `torch.chunk` gives each device")
            return (f"you say {mine:,.0f} bytes for device {device}"
                    f"{explained(mine - right, kinds, counted[0], one['activations'] + one['output'])}",
                    f"{right:,}, of which {', '.join(f'{name} {size:,}' for name, size in kinds.items() if size)}",
                    "which of these you forget, count twice or share out; each for this device's samples, or for all?")
        return None


def explained(difference, own, first, of_a_sample):
    """What the difference is exactly, if it is one of the kinds of this device, or of device 0; or so many samples."""
    for kinds, whose in ((own, ""), (first, " of device 0")):
        fits = [KINDS[name] for name, size in kinds.items() if size and size == abs(difference)]
        fits += ["one of the optimizer's two tensors per weight"] * (kinds["optimizer"] == 2 * abs(difference))
        if fits:
            twice = " counted twice, or what the loss keeps, which is left out here"
            more = twice if difference > 0 and fits == [KINDS["gathered"]] and own is first else whose
            return f", {'above' if difference > 0 else 'below'} what was counted by exactly {' or '.join(fits)}{more}"
    samples, way = difference / of_a_sample, "much" if difference > 0 else "little"
    return f", {abs(samples):g}× a sample's activations and output too {way}" * samples.is_integer()


class SmallCnn(InOneRank):
    title = "Hunt: 64 features claimed"
    task = ("`small_cnn()` returns a CNN for colour images of 32×32 pixels, and its head does not fit. Repair the "
            "head: for any batch, the model returns ten numbers per image, from the whole image, and can be trained. "
            "The two convolutions stay as they are. It is run on four stand-in devices, as by `nn.DataParallel`.")
    hints = (
        "Read the error: `2x65536` arrives, that is 2 images with 65,536 numbers each; `64x10` is the head. What is "
        "64·32·32?",
        "Two ways: a head that takes all 65,536 numbers, or one number per channel, by `nn.AdaptiveAvgPool2d(1)` "
        "before `nn.Flatten()`, which leaves 64.",
    )
    explanation = ("Averaging each channel's map leaves 64 numbers, which is what the head claims; it works for images "
                   "of any size. `nn.Linear(64 * 32 * 32, 10)` is right as well, with a thousand times the weights.")
    why = ("`mat1 and mat2 shapes cannot be multiplied (A and B)` says: A is what arrives, rows of samples, and B is "
           "the layer, as it was declared. With DataParallel, A's rows are one replica's chunk and not your batch.")
    cases = {"5 images on 4 devices, that is 2, 2 and 1": 5, "1 image on 4 devices": 1, "65 images on 4 devices": 65}
    given = ("Conv2d(3, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), "
             "Conv2d(32, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))")

    def answer():
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def probe(small_cnn, n_images):
        torch.manual_seed(0)
        model = small_cnn()
        if not isinstance(model, nn.Module):
            return (f"it returned {shown(model)}", "a model, an `nn.Module`",
                    "the `return`, and whether you make the model or name its class")
        for name, tensor in model.named_parameters():
            if isinstance(tensor, nn.parameter.UninitializedParameter):
                return (f"`{name}` has no shape yet, and what has no shape cannot be replicated",
                        "a head whose size is known when the model is made",
                        "a `Lazy…` layer has to see one batch before it is wrapped; or say the size yourself")
        images, step = torch.rand(3, 32 * 32).repeat(n_images, 1, 1), 1023 // n_images
        for number in range(1, n_images):  # each is as the first one, but for one pixel
            images[number, :, number * step] = 100
        images = images.view(-1, 3, 32, 32)
        try:
            replicas = [replica_of(model.eval(), device) for device in range(4)]
            with counted_calls(nn.Conv2d, "forward") as in_replicas:
                outputs = [replica(chunk) for replica, chunk in zip(replicas, images.chunk(4), strict=False)]
        except RuntimeError as error:
            sizes = re.search(r"\d+x\d+ and \d+x\d+", str(error))
            if not sizes:
                raise
            rows = int(sizes[0].partition("x")[0])
            return (f"mat1 and mat2 shapes cannot be multiplied ({sizes[0]})", "ten numbers per image",
                    "what arrives is the first shape, rows × numbers; what the head claims is the second; "
                    + ("the rows are one replica's images" if rows in map(len, images.chunk(4)) else
                       f"{rows} rows are no replica's images: what makes one row of each image, before the head?"))
        if len({one.dim() for one in outputs}) > 1:
            return f"for one image, the shape is {list(outputs[-1].shape)}", "[1, 10]", "`squeeze()` takes every 1 away"
        output = torch.cat(outputs)
        if output.shape != (n_images, 10):
            return (f"the output has the shape {list(output.shape)}", f"[{n_images}, 10]",
                    "what you do before the head: it flattens all dimensions but the first, which is the images, into "
                    "one, and has ten outputs; and after it: no class is chosen here")
        with counted_calls(nn.Conv2d, "forward") as calls, counted_calls(nn.Linear, "forward") as others:
            alone = model(images[:1])
        convolutions, linear = ([args[0] for args, _ in counted["forward"]] for counted in (calls, others))
        found = ", ".join(str(one).replace("=same", "=(1, 1)") for one in convolutions[:2])
        if found != SmallCnn.given:
            return f"the convolutions have changed: {found or 'none is there'}", SmallCnn.given, "repair the head only"
        for layer in convolutions + linear:
            if layer not in list(model.modules()):
                return (f"`{layer}` is no part of the model: `parameters()` leaves its weights out",
                        "a model that can be trained", "a layer that `forward` makes, or that lies in a Python list")
        if any(args[0] in list(model.modules()) for args, _ in in_replicas["forward"]):
            return ("a replica called a layer of the original model, which is on another device",
                    "each replica calls layers of its own", "a Python list of layers is copied as it is: it still "
                    "holds the original's; `self.conv`, an `nn.Sequential` or an `nn.ModuleList` holds the replica's")
        if not torch.allclose(alone[0], output[0], rtol=1e-3, atol=1e-5):
            return ("an image's output changes with the other images in the batch", "each row depends on its own image",
                    "a mean or a reshape across the first dimension")
        for number in range(1, n_images):
            if torch.allclose(output[number], output[0], rtol=0, atol=1e-6):
                row, column = divmod(number * step, 32)
                return (f"the pixel in row {row}, column {column} can be anything, the output stays the same",
                        "an answer from the whole image", "what is thrown away before the head")
        try:
            model.train()(images[:1])
        except ValueError as error:
            return (f"on a replica's single image, training raises: {error}", "a model that can be trained",
                    "a BatchNorm after the pooling has one value per channel where there is one image")
        lost = unreached(alone[:, 0], [(layer, layer.weight) for layer in convolutions + linear])
        return (f"no gradient reaches the weights of `{lost[0]}`", "a model that can be trained",
                "a `detach()`, a `torch.no_grad()` or a `requires_grad`") if lost else None


class Forward(InOneRank):
    title = "Hunt: a list that cannot be called"
    task = ("The `forward` above is that of a network whose `self.layers` is an `nn.ModuleList`. Repair it: the "
            "batch `x` goes through all layers, one after another, and `forward` returns what comes out of the last "
            "one. It also prints one line, whose first number is the number of samples that it got. It is run on four "
            "stand-in devices, with networks of three layers and of five, and every weight has to get a gradient.")
    hints = ("A `ModuleList` is a list that a model knows about: it has no `forward`. Lists are for loops.",
             "`for layer in self.layers:` and give each layer what the one before it has returned.")
    explanation = ("A loop over the layers; or make `self.layers` an `nn.Sequential`, which is a list with just this "
                   "`forward`. The number of samples is `len(x)`, or `x.shape[0]`.")
    why = ("`NotImplementedError: Module [ModuleList] is missing the required \"forward\" function` means that a "
           "container was called. And a `print` in `forward` is the quickest way to see what scatter gave to whom.")
    cases = {"3 layers": 3, "5 layers": 5}

    def answer(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            x = layer(x)
        return x

    def probe(forward, n_layers):
        torch.manual_seed(0)
        layers = [nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]
        net = type("PrintingNet", (nn.Module,), {"forward": forward})()
        net.layers = nn.ModuleList([*layers[:2], *layers[7 - n_layers:]])
        for device, chunk in enumerate(torch.rand(5, 7).chunk(4)):
            with contextlib.redirect_stdout(io.StringIO()) as printed, counted_calls(nn.Tanh, "forward") as calls:
                got = replica_of(net, device)(chunk)
            wanted, who = nn.Sequential(*net.layers)(chunk), f"a replica with {len(chunk)} of 5 samples"
            if not isinstance(got, torch.Tensor):
                return f"it returned {shown(got)}", "the output of the last layer", "the `return`"
            if got.shape != wanted.shape or not torch.allclose(got, wanted, atol=1e-6):
                other = "other values" if got.shape == wanted.shape else f"the shape {list(got.shape)}"
                return (f"{who}: the output has {other}", f"that of `nn.Sequential(*layers)`, {list(wanted.shape)}",
                        "each layer gets what the one before it returned, up to the last one; and nothing is kept from "
                        "an earlier call")
            lines = printed.getvalue().strip().splitlines()
            if re.findall(r"\d+", printed.getvalue())[:1] != [str(len(chunk))]:
                return (f"{who} printed {f'`{lines[0]}`' if lines else 'nothing'}",
                        f"a line whose first number is {len(chunk)}", "what you print, and in which dimension")
            if len(lines) > 1:
                return f"{who} printed {len(lines)} lines", "one line per replica", "is the `print` inside the loop?"
            lost = unreached(got, list(net.named_parameters()))
            if lost:
                return (f"no gradient reaches `{lost[0]}` from {who}",
                        "a gradient for every weight: otherwise the network cannot learn",
                        "a `detach()`, or a `torch.no_grad()`")
            if len(calls["forward"]) > n_layers // 2:
                return f"{who} went through the layers more than once", "once", "how often each layer is called"
        return None


scatter_nested, gather_nested, without_prefix = ScatterNested(), GatherNested(), WithoutPrefix()
device_memory, small_cnn, forward = DeviceMemory(), SmallCnn(), Forward()
