"""The exercises of lesson 04: what nn.DataParallel does with a batch, a model and a checkpoint; two real bugs."""

import contextlib
import re

from helpers.exercises.engine import Exercise, not_yet, wrong

LESSON = "04_data_parallel"


def _replica(module, device):
    """A copy of a module whose weights are copies that lead back to the module's, as DataParallel makes it."""
    import copy

    def copied(tensor):
        return None if tensor is None else tensor.view_as(tensor) if device == 0 else tensor.clone()

    replica = copy.copy(module)
    replica._parameters = {name: copied(tensor) for name, tensor in module._parameters.items()}
    replica._buffers = {name: copied(tensor) for name, tensor in module._buffers.items()}
    replica._modules = {name: None if child is None else _replica(child, device)
                        for name, child in module._modules.items()}
    return replica


def _data_parallel(model, batch, n_devices):
    """The model's output, computed by replicas in threads, and by replica what it has printed."""
    import io
    import threading

    import torch

    chunks, said, outputs = batch.chunk(n_devices), {}, {}

    class ByThread(io.TextIOBase):
        def write(self, text):
            name = threading.current_thread().name
            said[name] = said.get(name, "") + text
            return len(text)

    def work(device, chunk):
        try:
            outputs[device] = _replica(model, device)(chunk)
        except BaseException as error:
            outputs[device] = error

    threads = [threading.Thread(target=work, args=(device, chunk), name=f"replica {device}")
               for device, chunk in enumerate(chunks)]
    with contextlib.redirect_stdout(ByThread()):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for device in range(len(chunks)):
        if isinstance(outputs[device], BaseException):
            raise outputs[device]
    printed = [said.get(f"replica {device}", "") for device in range(len(chunks))]
    outputs = [outputs[device] for device in range(len(chunks))]
    if any(not isinstance(output, torch.Tensor) for output in outputs):
        return outputs[0], printed
    return torch.cat(outputs), printed


@contextlib.contextmanager
def _given(what):
    """What the learner's code raises here begins with the case that it was given."""
    try:
        yield
    except Exception as error:
        error.args = (f"given {what}: {error}",)
        raise


def _plain(value):
    """The same with lists in place of tensors, so that it can leave the rank: (kind, content)."""
    import torch

    if isinstance(value, torch.Tensor):
        return "Tensor", value.tolist()
    if isinstance(value, dict):
        return "dict", {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [_plain(item) for item in value]
    return type(value).__name__, repr(value)


def _shown(plain):
    """What `_plain` returned, as short text."""
    kind, content = plain
    if kind == "dict":
        return "{" + ", ".join(f"{name!r}: {_shown(item)}" for name, item in content.items()) + "}"
    if kind in ("list", "tuple"):
        inside = ", ".join(map(_shown, content))
        return f"[{inside}]" if kind == "list" else f"({inside}{',' * (len(content) == 1)})"
    return re.sub(r"\.0\b", "", f"tensor({content})") if kind == "Tensor" else str(content)


def _kind(plain):
    return "None" if plain[0] == "NoneType" else f"a {plain[0]}"


def _other_kind(got, wanted, where=""):
    """The first place inside at which two plain values differ in kind: (where, got's, wanted's); None if nowhere."""
    if got[0] != wanted[0]:
        return where, _kind(got), _kind(wanted)
    if got[0] == "dict":
        inside = [(f"`{name}`", got[1][name], item) for name, item in wanted[1].items() if name in got[1]]
    elif got[0] in ("list", "tuple"):
        inside = [(f"item {number}", *items) for number, items in enumerate(zip(got[1], wanted[1], strict=False))]
    else:
        return None
    found = (_other_kind(mine, other, f"{name} of {where}" if where else name) for name, mine, other in inside)
    return next(filter(None, found), None)


# ---------------------------------------------------------------------------------------------------------------------


class ScatterNested(Exercise):
    title = "Scatter: who gets which samples?"
    task = ("Share `inputs` out among at most `n_devices` devices. Return a list with one item for each device that "
            "gets samples. A tensor is cut along dimension 0, as `torch.chunk` cuts it. From a tuple, a list or a dict "
            "(they may hold each other) every device gets one of the same kind, with its part of each tensor. What is "
            "neither, a number for example, every device gets as it is. Gradients flow back through the parts.")
    hints = (
        "`inputs.chunk(n_devices)` does all that a single tensor needs, also with fewer samples than devices.",
        "For a tuple, scatter each of its items; that gives a list by item of lists by device. `zip(*…)` turns it into "
        "a list by device. A dict's values go the same way.",
        "A number has no parts: `[value] * n_devices` gives it to all; `zip` stops where the shortest list ends.",
    )
    explanation = ("The inner function calls itself for what lies inside. `zip` turns \"by item\" into \"by device\", "
                   "and ends with the shortest list, so a device without samples gets no number either. The library's "
                   "`scatter` is built the same way, and copies each part to its GPU.")
    why = ("only tensors are cut, and only along dimension 0: a tensor in which the batch stands elsewhere, or one "
           "that is not per sample at all, is cut as well, silently. And 9 samples on 4 devices leave one idle.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(inputs, n_devices):
        raise NotImplementedError

    @staticmethod
    def answer(inputs, n_devices):
        import torch

        def parts(value):
            if isinstance(value, torch.Tensor):
                return value.chunk(n_devices)
            if isinstance(value, dict):
                return [dict(zip(value, item)) for item in zip(*map(parts, value.values()))]  # noqa: B905
            if isinstance(value, (tuple, list)):
                return [type(value)(item) for item in zip(*map(parts, value))]  # noqa: B905
            return [value] * n_devices

        return list(parts(inputs))

    @wrong("device 0 got tensor([[0, 1], [4, 5]])")
    def deals_out_like_cards(inputs, n_devices):
        return [inputs[device::n_devices] for device in range(n_devices)]

    @wrong("sizes 2, 1, 1, 1")
    def as_equal_as_possible(inputs, n_devices):
        return list(inputs.tensor_split(n_devices))

    @wrong("sizes 1, 1, 1, 1")
    def drops_the_remainder(inputs, n_devices):
        each = max(1, len(inputs) // n_devices)
        return [inputs[device * each:(device + 1) * each] for device in range(n_devices)]

    @wrong("2 samples on 4 devices: 4 devices got something")
    def gives_empty_tensors(inputs, n_devices):
        parts = list(inputs.chunk(n_devices))
        return parts + [inputs[:0]] * (n_devices - len(parts)) if len(inputs) < n_devices else parts

    @wrong("'tuple' object has no attribute 'chunk'")
    def tensors_only(inputs, n_devices):
        return list(inputs.chunk(n_devices))

    @wrong("a tuple of two tensors: 2 devices got something, expected: 3 devices")
    def by_item_and_not_by_device(inputs, n_devices):
        if isinstance(inputs, tuple):
            return [item.chunk(n_devices) for item in inputs]
        return list(inputs.chunk(n_devices))

    @wrong("'float' object has no attribute 'chunk'")
    def cuts_numbers_too(inputs, n_devices):
        if isinstance(inputs, dict):
            return [dict(zip(inputs, item, strict=True))
                    for item in zip(*[value.chunk(n_devices) for value in inputs.values()], strict=False)]
        if isinstance(inputs, tuple):
            return list(zip(*[item.chunk(n_devices) for item in inputs], strict=False))
        return list(inputs.chunk(n_devices))

    @wrong("given a tuple of two tensors: 'tuple' object has no attribute 'chunk'")
    def names_the_case(inputs, n_devices):
        return list(inputs.chunk(n_devices))

    @wrong("no gradient comes back through device 0's part")
    def cuts_the_graph(inputs, n_devices):
        import torch

        if isinstance(inputs, torch.Tensor):
            return [chunk.detach().clone() for chunk in inputs.chunk(n_devices)]
        return ScatterNested.answer(inputs, n_devices)

    @wrong("1 device got something, expected: 2 devices")
    def one_for_all(inputs, n_devices):
        return [inputs]

    @wrong("returned None")
    def forgets_to_return(inputs, n_devices):
        inputs.chunk(n_devices)

    @staticmethod
    def probe(scatter_nested):
        import torch

        observed = []
        for what, inputs, n_devices in _to_scatter(torch):
            wanted = ScatterNested.answer(inputs, n_devices)
            with _given(what):
                got = scatter_nested(inputs, n_devices)
            cut_off = [device for device, part in enumerate(got) if not part.requires_grad] if (
                isinstance(inputs, torch.Tensor) and inputs.requires_grad
                and _plain(got)[1] == [_plain(part) for part in wanted]) else []
            observed.append((what, _plain(got), [_plain(part) for part in wanted], cut_off))
            if observed[-1][1][1] != observed[-1][2]:
                break  # the learner reads of the first thing that goes wrong, not of an error in a later one
        return observed

    def judge(self, observed):
        for what, (kind, got), wanted, cut_off in observed[0]:
            if kind not in ("list", "tuple"):
                return not_yet(f"{what}: it returned {_kind((kind, got))}", "a list, with one item per device",
                               "the line with `return`")
            sizes, right = (", ".join(str(_samples(part)) for part in parts) for parts in (got, wanted))
            if len(got) != len(wanted):
                return not_yet(f"{what}: {_devices(len(got))} got something, expected: {_devices(len(wanted))}; you "
                               f"cut into sizes {sizes}", f"sizes {right}",
                               "one item per device that gets samples; sizes as `torch.chunk` makes them")
            for device, (mine, other) in enumerate(zip(got, wanted, strict=True)):
                if mine != other:
                    also = f" (sizes {sizes}, expected: {right})" if sizes != right else ""
                    return not_yet(f"{what}: device {device} got {_shown(mine)}{also}", _shown(other),
                                   "neighbouring samples stay together; each device gets the same kind of thing")
            if cut_off:
                return not_yet(f"{what}: no gradient comes back through device {cut_off[0]}'s part",
                               "parts that lead back to `inputs`, as `chunk` makes them",
                               "a `detach()`, `.data`, `no_grad()` or new tensor made from numbers")
        return None


def _devices(count):
    return f"{count} device{'s' * (count != 1)}"


def _to_scatter(torch):
    """(what it is, inputs, n_devices), the simple ones first."""

    def rows(count, start=0):
        return torch.arange(start, start + 2 * count).view(count, 2)

    return [
        ("4 samples on 2 devices", rows(4), 2),
        ("5 samples on 4 devices", rows(5), 4),
        ("9 samples on 4 devices", rows(9), 4),
        ("2 samples on 4 devices", rows(2), 4),
        ("a tuple of two tensors", (rows(6), torch.arange(6)), 3),
        ("a dict with a number", {"x": rows(4), "scale": 0.5, "mask": None}, 2),
        ("things in things", ({"x": rows(3)}, [torch.arange(3), "train"]), 2),
        ("a batch that requires a gradient", rows(3).float().requires_grad_(), 2),
    ]


def _samples(plain):
    """How many samples the first tensor in it holds; 0 if there is none."""
    kind, content = plain
    if kind == "Tensor":
        return len(content) if isinstance(content, list) else 1
    inside = content.values() if kind == "dict" else content if kind in ("list", "tuple") else ()
    return next((found for found in map(_samples, inside) if found), 0)


# ---------------------------------------------------------------------------------------------------------------------


class GatherNested(Exercise):
    title = "Gather: one output from many"
    task = ("`outputs` is a list with what each device's replica has returned: tensors; or tuples, lists or dicts of "
            "such, the same kind from each (they may hold each other). Return one of that kind, in which the "
            "tensors of all devices are joined along dimension 0, in the devices' order. `None` stays `None`. "
            "Where the replicas return scalars, tensors without a dimension, return a vector with one element per "
            "device, as the library does. `backward` has to find its way back to every device.")
    hints = (
        "`torch.cat` joins tensors whose sizes differ in dimension 0 only. It refuses scalars: give them a dimension.",
        "For dicts: gather the values of one name from all devices, then of the next. For tuples, `zip(*outputs)` "
        "brings the first items together, then the second ones.",
    )
    explanation = ("The first device's output says which kind it is. `torch.cat` is differentiable: its backward cuts "
                   "the gradient and hands each device its part, so a gather needs no code for the way back.")
    why = ("the backward of a gather is a scatter, and that of a scatter is a gather. And now you know whence comes "
           "`Was asked to gather along dimension 0, but all input tensors were scalars`: losses from replicas.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(outputs):
        raise NotImplementedError

    @staticmethod
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

    @wrong("shape [2, 2, 3]")
    def stacks(outputs):
        import torch

        return torch.stack(outputs)

    @wrong("shape [2, 6]")
    def joins_along_the_last_dimension(outputs):
        import torch

        return torch.cat(outputs, dim=-1)

    @wrong("`backward` does not reach device 0")
    def cuts_the_graph(outputs):
        import torch

        return torch.cat([output.detach() for output in outputs])

    @wrong("zero-dimensional tensor")
    def forgets_scalars(outputs):
        import torch

        return torch.cat(outputs)

    @wrong("scalars: it returned a tensor of shape []")
    def averages_scalars(outputs):
        import torch

        if outputs[0].dim() == 0:
            return sum(outputs) / len(outputs)
        return torch.cat(outputs)

    @wrong("'tuple' object has no attribute 'reshape'")
    def tensors_only(outputs):
        import torch

        return torch.cat([value if isinstance(value, torch.Tensor) and value.dim() else value.reshape(1)
                          for value in outputs])

    @wrong("tuples: it returned a list")
    def loses_the_kind(outputs):
        import torch

        if isinstance(outputs[0], tuple):
            return [torch.cat(items) for items in zip(*outputs, strict=True)]
        return torch.cat([value if value.dim() else value.reshape(1) for value in outputs])

    @wrong("given tuples: 'tuple' object has no attribute 'reshape'")
    def names_the_case(outputs):
        import torch

        return torch.cat([value if isinstance(value, torch.Tensor) and value.dim() else value.reshape(1)
                          for value in outputs])

    @wrong("`hidden` is a tuple")
    def makes_tuples_of_lists(outputs):
        import torch

        first = outputs[0]
        if isinstance(first, torch.Tensor):
            return GatherNested.answer(outputs)
        if isinstance(first, dict):
            return {name: GatherNested.makes_tuples_of_lists([value[name] for value in outputs]) for name in first}
        return None if first is None else tuple(map(GatherNested.makes_tuples_of_lists, zip(*outputs, strict=True)))

    @wrong("uneven chunks: it returned other values")
    def sorts_by_size(outputs):
        import torch

        return torch.cat(sorted(outputs, key=len))

    @staticmethod
    def probe(gather_nested):
        import torch

        observed = []
        for what, outputs in _to_gather(torch):
            leaves = [leaf for leaf in _leaves(outputs) if isinstance(leaf, torch.Tensor)]
            wanted = GatherNested.answer(outputs)
            with _given(what):
                got = gather_nested(outputs)
            flat = [leaf for leaf in _leaves(got) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            if flat:
                sum(leaf.sum() for leaf in flat).backward()
            lost = [number for number, leaf in enumerate(leaves) if leaf.grad is None]
            devices = [number * len(outputs) // len(leaves) for number in lost]
            observed.append((what, _plain(got), _plain(wanted), devices))
            if _plain(got) != _plain(wanted) or devices:
                break
        return observed

    def judge(self, observed):
        for what, got, wanted, lost in observed[0]:
            if got[0] != wanted[0]:
                return not_yet(f"{what}: it returned {_kind(got)}", f"a {wanted[0]}", "the kind of the first output")
            shapes = [_shape(plain[1]) if plain[0] == "Tensor" else None for plain in (got, wanted)]
            if shapes[0] != shapes[1]:
                return not_yet(f"{what}: it returned a tensor of shape {shapes[0]}", f"shape {shapes[1]}",
                               "along which dimension, and how, the tensors are joined")
            other = _other_kind(got, wanted)
            if other:
                return not_yet(f"{what}: {other[0]} is {other[1]}", f"{other[2]}, as the replicas return it",
                               "the kind of thing that you make of what lies inside")
            if got != wanted:
                return not_yet(f"{what}: it returned other values, {_shown(got)}", _shown(wanted),
                               "the order of the devices, and what you do with what lies inside")
            if lost:
                return not_yet(f"{what}: `backward` does not reach device {lost[0]}", "gradients on every device",
                               "a `detach()`, `tolist()` or new tensor made from numbers")
        return None


def _to_gather(torch):
    """(what it is, outputs by device); every tensor wants a gradient."""

    def rows(count, start):
        return torch.arange(start, start + 3.0 * count).view(count, 3).requires_grad_()

    def three(make):
        return [make(rows(count, 10.0 * device)) for device, count in enumerate((2, 2, 1))]

    return [
        ("two devices", [rows(2, 0), rows(2, 10)]),
        ("uneven chunks", [rows(2, 0), rows(1, 10), rows(2, 20)]),
        ("scalars", [torch.tensor(float(device), requires_grad=True) for device in range(3)]),
        ("tuples", three(lambda tensor: (tensor, tensor.detach()[:, 0].requires_grad_()))),
        ("things in things", three(lambda tensor: {"logits": tensor, "hidden": [tensor.detach().requires_grad_()],
                                                   "attention": None})),
    ]


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list | tuple) else [value]


def _shape(content):
    return [len(content), *_shape(content[0])] if isinstance(content, list) and content else []


# ---------------------------------------------------------------------------------------------------------------------

#: What may stand in a checkpoint: names, as saved by nn.DataParallel, without it, and by somebody who mixed the two.
CHECKPOINTS = (
    ("saved from a DataParallel", ("module.conv.weight", "module.conv.bias")),
    ("saved without one", ("conv.weight", "conv.bias")),
    ("a mixture", ("conv.weight", "module.dense.weight", "module.dense.bias")),
    ("a part called `submodule`", ("submodule.weight", "module.submodule.bias", "encoder.module.weight")),
    ("a part called `module`", ("module.module.weight", "module.mode.bias", "modules.0.bias",
                                "modules.0.module.weight")),
)


class WithoutPrefix(Exercise):
    title = "A checkpoint with `module.`"
    task = ("`state` is a state dict in which names may begin with `module.`, because the model was wrapped when it "
            "was saved; all names, some, or none. Return a new dict in which that one prefix is gone from the "
            "beginning of each such name; all else, the tensors too, is as before. `state` itself stays as it is: "
            "somebody may still want to load it into a wrapped model.")
    hints = (
        "`name.replace(\"module.\", \"\")` also finds it in the middle of a name; `lstrip` takes letters, not words.",
        "Python 3.9 brought a method of strings that does just this. What does "
        "`\"module.a\".removeprefix(\"module.\")` give, and what `\"submodule.a\"…`?",
    )
    explanation = ("`removeprefix` takes away the prefix once, and only at the beginning. Torch has "
                   "`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present`, which changes the dict that it "
                   "is given.")
    why = ("`Missing key(s) … Unexpected key(s) \"module.…\"` comes from saving the wrapper. The better cure is on the "
           "other side: save `wrapped.module.state_dict()`, which any model can load, wrapped or not.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(state):
        raise NotImplementedError

    @staticmethod
    def answer(state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}

    @wrong("`submodule.weight` became `subweight`")
    def replaces_everywhere(state):
        return {name.replace("module.", ""): tensor for name, tensor in state.items()}

    @wrong("`conv.weight` became `ight`")
    def cuts_seven_letters(state):
        return {name[7:]: tensor for name, tensor in state.items()}

    @wrong("`module.dense.weight` became `nse.weight`")
    def strips_letters(state):
        return {name.lstrip("module."): tensor for name, tensor in state.items()}

    @wrong("`state` itself has changed")
    def changes_the_argument(state):
        from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

        consume_prefix_in_state_dict_if_present(state, "module.")
        return state

    @wrong("`conv.weight` is missing")
    def keeps_only_what_had_it(state):
        return {name[7:]: tensor for name, tensor in state.items() if name.startswith("module.")}

    @wrong("`module.dense.weight` is still there")
    def looks_at_the_first_name_only(state):
        if next(iter(state)).startswith("module."):
            return {name.removeprefix("module."): tensor for name, tensor in state.items()}
        return dict(state)

    @wrong("`module.module.weight` became `weight`")
    def as_long_as_there_is_one(state):
        new = {}
        for name, tensor in state.items():
            while name.startswith("module."):
                name = name[7:]
            new[name] = tensor
        return new

    @wrong("`modules.0.bias` became")
    def without_the_dot(state):
        return {name.removeprefix("module").lstrip("."): tensor for name, tensor in state.items()}

    @wrong("`modules.0.module.weight` became `modules.0.weight`")
    def the_first_one_anywhere(state):
        return {name.replace("module.", "", 1) if name.startswith("module") else name: tensor
                for name, tensor in state.items()}

    @wrong("returned a list")
    def names_only(state):
        return [name.removeprefix("module.") for name in state]

    @staticmethod
    def probe(without_prefix):
        from collections import OrderedDict

        import torch

        observed = []
        for what, names in CHECKPOINTS:
            state = OrderedDict((name, torch.tensor(float(number))) for number, name in enumerate(names))
            before = list(state.items())
            with _given(f"a state dict that was {what}" if what.startswith("saved") else what):
                got = without_prefix(state)
            seen = {"what": what, "names": names, "type": type(got).__name__,
                    "changed": [name for name, _ in before] != list(state)
                    or any(state[name] is not tensor for name, tensor in before)}
            if isinstance(got, dict):
                of = {id(tensor): name for name, tensor in before}
                values = {float(tensor): name for name, tensor in before}
                seen["got"] = [(str(name), of.get(id(tensor)) or values.get(_number(tensor)))
                               for name, tensor in got.items()]
            observed.append(seen)
        return observed

    def judge(self, observed):
        for seen in observed[0]:
            what = seen["what"]
            if "got" not in seen:
                return not_yet(f"{what}: it returned {'None' if seen['type'] == 'NoneType' else 'a ' + seen['type']}",
                               "a dict of tensors by name", "the line with `return`")
            if seen["changed"]:
                return not_yet(f"{what}: `state` itself has changed", "a new dict; the old one stays as it was",
                               "`pop`, `del`, assignments into `state`, and functions that do that")
            became = {old: new for new, old in seen["got"]}
            for name in seen["names"]:
                right = name.removeprefix("module.")
                if name not in became:
                    return not_yet(f"{what}: `{name}` is missing, or has another tensor", f"`{right}`, with its tensor",
                                   "names that you skip, or that fall on one another")
                if became[name] != right:
                    said = "is still there" if became[name] == name else f"became `{became[name]}`"
                    return not_yet(f"{what}: `{name}` {said}", f"`{right}`",
                                   "only at the beginning, only the whole word with its dot, only once")
            if len(seen["got"]) != len(seen["names"]):
                return not_yet(f"{what}: {len(seen['got'])} names, {', '.join(new for new, _ in seen['got'])}",
                               f"as many as `state` has, {len(seen['names'])}", "what you add")
        return None


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


# ---------------------------------------------------------------------------------------------------------------------

#: Samples, devices and tensors per weight that the optimizer keeps.
STEPS = ((8, 4, 0), (8, 4, 2), (5, 4, 1), (9, 4, 2), (2, 3, 1))
KINDS = {"weights": "its copy of the weights", "gradients": "its gradients", "activations": "its activations",
         "output": "its own output", "gathered": "the gathered output", "optimizer": "the optimizer's state"}


def counted(model, batch, n_devices, states):
    """By device, the bytes of each of KINDS that one step of DataParallel puts there, counted from its tensors."""
    import torch

    held = [dict.fromkeys(KINDS, 0) for _ in range(n_devices)]
    outputs = []
    for device, chunk in enumerate(batch.chunk(n_devices)):
        replica = _replica(model, device)
        weights = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in replica.parameters()}
        kept = {}

        def keep(tensor, kept=kept, weights=weights):
            memory = tensor.untyped_storage()
            if memory.data_ptr() not in weights:
                kept[memory.data_ptr()] = memory.nbytes()
            return tensor

        def arrived(gradient, device=device):
            held[device]["gradients"] += gradient.nbytes

        for tensor in replica.parameters():
            tensor.register_hook(arrived)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs.append(replica(chunk.clone()))
        held[device] |= {"weights": sum(weights.values()), "activations": sum(kept.values()),
                         "output": outputs[-1].nbytes}
    gathered = torch.cat(outputs)
    held[0]["gathered"] = gathered.nbytes
    gathered.sum().backward()
    kept_by_optimizer = [torch.zeros_like(weight) for weight in model.parameters() for _ in range(states)]
    held[0]["optimizer"] = sum(tensor.nbytes for tensor in kept_by_optimizer)
    return held


class DeviceMemory(Exercise):
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
                   "check counted the real tensors of a hand-made step; `autograd.graph.saved_tensors_hooks` showed it "
                   "the activations.")
    why = ("the batch has to be as small as device 0 needs it; the others' memory stays unused. With a large output, a "
           "vocabulary for example, that is most of it: compute the loss inside the replicas, per sample or as a sum, "
           "or use lesson 05's DDP.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(batch, n_devices, weights, activations, output, states):
        raise NotImplementedError

    @staticmethod
    def answer(batch, n_devices, weights, activations, output, states):
        each, held, left = -(-batch // n_devices), [], batch
        for _ in range(n_devices):
            samples = min(each, left)
            left -= samples
            held.append(2 * weights + samples * (activations + output) if samples else 0)
        held[0] += batch * output + states * weights
        return held

    @wrong("device 0: you are below what was counted by exactly the gathered output")
    def forgets_the_gathered_output(batch, n_devices, weights, activations, output, states):
        each = -(-batch // n_devices)
        return [2 * weights + each * (activations + output) + (states * weights if device == 0 else 0)
                for device in range(n_devices)]

    @wrong("above what was counted by exactly the gathered output counted twice, or what the loss keeps, which")
    def as_the_lesson_counts(batch, n_devices, weights, activations, output, states):
        from helpers.widgets.data_parallel import memory

        return [sum(kinds.values()) for kinds in memory(batch, n_devices, weights, activations, output, states)]

    @wrong("device 1: you are above what was counted by exactly the optimizer's state of device 0")
    def an_optimizer_everywhere(batch, n_devices, weights, activations, output, states):
        each = -(-batch // n_devices)
        held = [(2 + states) * weights + each * (activations + output) for _ in range(n_devices)]
        held[0] += batch * output
        return held

    @wrong("device 1: you are below what was counted by exactly its copy of the weights or its gradients")
    def gradients_on_device_0_only(batch, n_devices, weights, activations, output, states):
        each = -(-batch // n_devices)
        held = [weights + each * (activations + output) for _ in range(n_devices)]
        held[0] += weights + batch * output + states * weights
        return held

    @wrong("5 samples on 4 devices")
    def splits_evenly(batch, n_devices, weights, activations, output, states):
        held = [2 * weights + batch / n_devices * (activations + output) for _ in range(n_devices)]
        held[0] += batch * output + states * weights
        return held

    @wrong("device 3 gets no sample")
    def a_replica_on_every_device(batch, n_devices, weights, activations, output, states):
        each, held = -(-batch // n_devices), []
        for device in range(n_devices):
            samples = max(0, min(each, batch - device * each))
            held.append(2 * weights + samples * (activations + output))
        held[0] += batch * output + states * weights
        return held

    @wrong("returned an int")
    def device_0_only(batch, n_devices, weights, activations, output, states):
        return (2 + states) * weights + -(-batch // n_devices) * (activations + output) + batch * output

    @wrong("2 items instead of 3")
    def leaves_out_idle_devices(batch, n_devices, weights, activations, output, states):
        each, held = -(-batch // n_devices), []
        for first in range(0, batch, each):
            held.append(2 * weights + min(each, batch - first) * (activations + output))
        held += [0] * (n_devices - len(held)) if n_devices > 3 else []
        held[0] += batch * output + states * weights
        return held

    @staticmethod
    def probe(device_memory):
        import torch
        from torch import nn

        torch.set_num_threads(1)
        observed = []
        for batch, n_devices, states in STEPS:
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 24))
            samples = torch.rand(batch, 16)
            one = counted(model, samples[:1], 1, 0)[0]
            with _given(_step(batch, n_devices, states)):
                got = device_memory(batch, n_devices, one["weights"], one["activations"], one["output"], states)
            numbers = [float(item) for item in got] if isinstance(got, list | tuple) else None
            observed.append({"case": (batch, n_devices, states), "type": type(got).__name__, "got": numbers,
                             "counted": counted(model, samples, n_devices, states)})
        return observed

    def judge(self, observed):
        for seen in observed[0]:
            batch, n_devices, states = seen["case"]
            case = _step(batch, n_devices, states)
            if seen["got"] is None:
                kind = {"NoneType": "None", "int": "an int"}.get(seen["type"], f"a {seen['type']}")
                return not_yet(f"{case}: it returned {kind}", f"a list of {n_devices} numbers", "the `return`")
            if len(seen["got"]) != n_devices:
                return not_yet(f"{case}: {len(seen['got'])} items instead of {n_devices}",
                               "one number for each device, also for those without samples", "the last devices")
            for device, (mine, kinds) in enumerate(zip(seen["got"], seen["counted"], strict=True)):
                right = sum(kinds.values())
                if mine == right:
                    continue
                if right == 0:
                    return not_yet(f"{case}: device {device} gets no sample, and you say {mine:,.0f} bytes", "0",
                                   "how many samples `torch.chunk` gives each device")
                parts = ", ".join(f"{name} {size:,}" for name, size in kinds.items() if size)
                observation = f"{case}: you say {mine:,.0f} bytes for device {device}"
                hint = _explained(mine - right, kinds, seen["counted"][0])
                if hint:
                    observation += f"; device {device}: you are {hint}"
                return not_yet(observation, f"{right:,}, of which {parts}",
                               "which of these you forget or count twice; how many samples this device has")
        return None


def _step(batch, n_devices, states):
    tensors = f"{states} tensor{'s' * (states != 1)}"
    return f"{batch} samples on {n_devices} devices, {tensors} per weight in the optimizer"


def _explained(difference, own, first):
    """What the difference is exactly, if it is one of the kinds of this device, or of device 0."""
    where = "above" if difference > 0 else "below"
    for kinds, whose in ((own, ""), (first, " of device 0")):
        fits = [KINDS[name] for name, size in kinds.items() if size and size == abs(difference)]
        if fits:
            twice = " counted twice, or what the loss keeps, which is left out here"
            more = twice if difference > 0 and fits == [KINDS["gathered"]] and own is first else whose
            return f"{where} what was counted by exactly {' or '.join(fits)}{more}"
    return ""


# ---------------------------------------------------------------------------------------------------------------------


class SmallCnn(Exercise):
    title = "Hunt: 64 features claimed"
    task = ("`small_cnn()` returns a CNN for colour images of 32×32 pixels, and its head does not fit. Repair the "
            "head: for any batch, the model returns ten numbers per image, from the whole image. The two "
            "convolutions stay as they are. It is run on four stand-in devices, as `nn.DataParallel` would run it.")
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
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub():
        raise NotImplementedError

    @staticmethod
    def answer():
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    @wrong("(2x65536 and 64x10)")
    def as_in_the_article():
        from torch import nn

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             nn.Flatten(), nn.Linear(64, 10))

    @wrong("5120 rows for 5 images")
    def makes_samples_of_pixels():
        from torch import nn

        class Rows(nn.Module):
            def forward(self, x):
                return x.permute(0, 2, 3, 1).reshape(-1, 64)

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             Rows(), nn.Linear(64, 10))

    @wrong("the output has the shape [5, 1000]")
    def a_thousand_classes():
        from torch import nn

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))

    @wrong("all dimensions but the first, flattened into one; ten outputs")
    def flattens_the_map_only():
        from torch import nn

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             nn.Flatten(2), nn.Linear(1024, 10))

    @wrong("the centre of an image can be anything")
    def takes_one_pixel():
        from torch import nn

        class Corner(nn.Module):
            def forward(self, x):
                return x[:, :, 0, 0]

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             Corner(), nn.Linear(64, 10))

    @wrong("no shape yet")
    def leaves_it_to_the_first_batch():
        from torch import nn

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             nn.Flatten(), nn.LazyLinear(10))

    @wrong("(2x32768 and 65536x10)")
    def knows_the_batch_by_heart():
        from torch import nn

        class Fixed(nn.Module):
            def forward(self, x):
                return x.reshape(2, -1)

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             Fixed(), nn.Linear(65536, 10))

    @wrong("the convolutions have changed")
    def changes_the_convolutions():
        from torch import nn

        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 32), nn.ReLU(),
                             nn.Flatten(), nn.Linear(64, 10))

    @wrong("returned a type")
    def returns_a_class():
        from torch import nn

        return nn.Sequential

    @staticmethod
    def probe(small_cnn):
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = small_cnn()
        seen = {"type": type(model).__name__}
        if not isinstance(model, nn.Module):
            return seen
        seen["lazy"] = [name for name, tensor in model.named_parameters()
                        if isinstance(tensor, nn.parameter.UninitializedParameter)]
        if seen["lazy"]:
            return seen
        seen["convolutions"] = [tuple(module.weight.shape) for module in model.modules()
                                if isinstance(module, nn.Conv2d)]
        images = torch.rand(5, 3, 32, 32)
        model.eval()
        try:
            with torch.no_grad():
                outputs = _data_parallel(model, images, 4)[0]
                seen["shapes"] = [list(outputs.shape), list(_data_parallel(model, images[:1], 4)[0].shape)]
                if seen["shapes"] == [[5, 10], [1, 10]]:
                    seen["blind"], seen["alone"] = _blind(model, images, outputs)
        except RuntimeError as error:
            seen["error"] = str(error).splitlines()[0]
        return seen

    def judge(self, observed):
        seen = observed[0]
        if "lazy" not in seen:
            return not_yet(f"it returned {'None' if seen['type'] == 'NoneType' else 'a ' + seen['type']}",
                           "a model, an `nn.Module`", "the `return`, and whether you make the model or name its class")
        if seen["lazy"]:
            return not_yet(f"`{seen['lazy'][0]}` has no shape yet, and what has no shape cannot be replicated",
                           "a head whose size is known when the model is made",
                           "a `Lazy…` layer has to see one batch before it is wrapped; or say the size yourself")
        if "error" in seen:
            return not_yet(f"5 images on 4 devices, that is 2, 2 and 1: RuntimeError: {seen['error']}",
                           "ten numbers per image", "what arrives is the first shape, rows × numbers; what the head "
                                                    "claims is the second; the rows are one replica's images")
        if seen["convolutions"] != [(32, 3, 3, 3), (64, 32, 3, 3)]:
            return not_yet(f"the convolutions have changed: their weights are now {seen['convolutions']}",
                           "the two that were given, [(32, 3, 3, 3), (64, 32, 3, 3)]", "repair the head only")
        for images, shape in zip((5, 1), seen["shapes"], strict=True):
            if shape[:1] == [images] and shape != [images, 10]:
                return not_yet(f"{images} image{'s' * (images > 1)}: the output has the shape {shape}",
                               f"[{images}, 10]", "all dimensions but the first, flattened into one; ten outputs")
            if shape != [images, 10]:
                return not_yet(f"{shape[0]} rows for {images} image{'s' * (images > 1)}: the output has the shape "
                               f"{shape}", f"[{images}, 10]", "what you do before the head, to the first dimension")
        if seen["blind"]:
            return not_yet(f"{seen['blind'][0]} of an image can be anything, the output stays the same",
                           "an answer from the whole image", "what is thrown away before the head")
        if not seen["alone"]:
            return not_yet("when one image changes, the other images' outputs change too",
                           "each row depends on its own image", "a mean or a reshape across the first dimension")
        return None


def _blind(model, images, outputs):
    """The parts of an image that its output does not depend on; and whether it depends on no other image."""
    blind, alone = [], True
    for what, row, column in (("the upper left corner", 0, 0), ("the centre", 16, 16),
                              ("the lower right corner", 31, 31), ("the lower left corner", 31, 0)):
        changed = False
        for value in (-100, 100):
            other = images.clone()
            other[0, :, row, column] = value
            now = _data_parallel(model, other, 4)[0]
            changed |= not now[0].allclose(outputs[0])
            alone &= now[1:].allclose(outputs[1:], rtol=1e-3, atol=1e-5)
        if not changed:
            blind.append(what)
    return blind, bool(alone)


# ---------------------------------------------------------------------------------------------------------------------


class Forward(Exercise):
    title = "Hunt: a list that cannot be called"
    task = ("This is the `forward` of a network whose `self.layers` is an `nn.ModuleList`. Repair it: the batch `x` "
            "goes through all layers, one after another, and `forward` returns what comes out of the last one. It "
            "also prints one line, whose first number is the number of samples that it got. It is run on four stand-in "
            "devices, with networks of three layers and of five, and every weight has to get a gradient.")
    hints = (
        "A `ModuleList` is a list that a model knows about: it has no `forward`. Lists are for loops.",
        "`for layer in self.layers:` and give each layer what the one before it has returned.",
    )
    explanation = ("A loop over the layers; or make `self.layers` an `nn.Sequential`, which is a list with just this "
                   "`forward`. The number of samples is `len(x)`, or `x.shape[0]`.")
    why = ("`NotImplementedError: Module [ModuleList] is missing the required \"forward\" function` means that a "
           "container was called. And a `print` in `forward` is the quickest way to see what scatter gave to whom.")
    world_sizes = (1,)
    timeout = 15

    @staticmethod
    def stub(self, x):
        raise NotImplementedError

    @staticmethod
    def answer(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            x = layer(x)
        return x

    @wrong("Module [ModuleList] is missing the required")
    def as_in_the_article(self, x):
        output = self.layers(x)
        print(f"a replica got {len(x)} samples")
        return output

    @wrong("mat1 and mat2 shapes cannot be multiplied")
    def gives_x_to_every_layer(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            output = layer(x)
        return output

    @wrong("it returned None")
    def forgets_to_return(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            x = layer(x)

    @wrong("a replica with 2 samples printed nothing")
    def prints_nothing(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    @wrong("a replica with 2 samples printed `a replica got 7 samples`")
    def counts_the_features(self, x):
        print(f"a replica got {x.shape[1]} samples")
        for layer in self.layers:
            x = layer(x)
        return x

    @wrong("5 layers: the output has the shape [5, 6]")
    def three_layers_by_heart(self, x):
        print(f"a replica got {len(x)} samples")
        return self.layers[2](self.layers[1](self.layers[0](x)))

    @wrong("3 layers: the output has the shape [5, 6]")
    def stops_before_the_last(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers[:-1]:
            x = layer(x)
        return x

    @wrong("no gradient reaches `layers.0.weight`")
    def detaches_the_output(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            x = layer(x)
        return x.detach()

    @wrong("no gradient reaches `layers.0.weight`")
    def without_gradients(self, x):
        import torch

        print(f"a replica got {len(x)} samples")
        with torch.no_grad():
            for layer in self.layers:
                x = layer(x)
        return x

    @wrong("a replica with 2 samples printed 3 lines")
    def prints_in_the_loop(self, x):
        for layer in self.layers:
            print(f"a replica got {len(x)} samples")
            x = layer(x)
        return x

    @wrong("other values")
    def changes_the_values(self, x):
        print(f"a replica got {len(x)} samples")
        for layer in self.layers:
            x = layer(x).abs()
        return x

    @staticmethod
    def probe(forward):
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(0)

        class PrintingNet(nn.Module):
            def __init__(self, *layers):
                super().__init__()
                self.layers = nn.ModuleList(layers)

            def forward(self, x):
                return forward(self, x)

        observed = []
        for layers in ([nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)],
                       [nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]):
            batch = torch.rand(5, 7)
            net = PrintingNet(*layers)
            with _given(f"{len(layers)} layers"):
                got, printed = _data_parallel(net, batch, 4)
            seen = {"layers": len(layers), "type": type(got).__name__, "printed": printed,
                    "sizes": [len(chunk) for chunk in batch.chunk(4)]}
            if isinstance(got, torch.Tensor):
                wanted = nn.Sequential(*layers)(batch)
                seen["shape"] = list(got.shape)
                seen["right"] = got.shape == wanted.shape and bool(torch.allclose(got, wanted, atol=1e-6))
                if got.requires_grad:
                    got.sum().backward()
                seen["unreached"] = [name for name, weight in net.named_parameters() if weight.grad is None]
            observed.append(seen)
            if not seen.get("right"):
                break
        return observed

    def judge(self, observed):
        for seen in observed[0]:
            case = f"{seen['layers']} layers"
            if "shape" not in seen:
                return not_yet(f"{case}: it returned {'None' if seen['type'] == 'NoneType' else 'a ' + seen['type']}",
                               "the output of the last layer", "the `return`")
            if not seen["right"]:
                what = f"the output has the shape {seen['shape']}" if seen["shape"] != [5, 3] else \
                    "the output has other values"
                return not_yet(f"{case}: {what}", "that of `nn.Sequential(*layers)`, [5, 3]",
                               "each layer gets what the one before it returned, up to the last one")
            for size, text in zip(seen["sizes"], seen["printed"], strict=True):
                numbers = re.findall(r"\d+", text)
                if not numbers or int(numbers[0]) != size:
                    line = text.strip().splitlines()[0] if text.strip() else ""
                    said = f"`{line}`" if line else "nothing"
                    return not_yet(f"{case}: a replica with {size} sample{'s' * (size > 1)} printed {said}",
                                   f"a line whose first number is {size}", "what you print, and in which dimension")
                lines = len(text.strip().splitlines())
                if lines > 1:
                    return not_yet(f"{case}: a replica with {size} sample{'s' * (size > 1)} printed {lines} lines",
                                   "one line per replica", "is the `print` inside the loop?")
            if seen["unreached"]:
                return not_yet(f"{case}: no gradient reaches `{seen['unreached'][0]}`",
                               "a gradient for every weight: otherwise the network cannot learn",
                               "a `detach()`, or a `torch.no_grad()`")
        return None


scatter_nested, gather_nested, without_prefix = ScatterNested(), GatherNested(), WithoutPrefix()
device_memory, small_cnn, forward = DeviceMemory(), SmallCnn(), Forward()
