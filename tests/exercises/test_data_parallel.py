"""Lesson 04: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
scatter_nested   one dtype; the graph cut, in a nested part only; `tensor_split`'s sizes, right if all are equal
gather_nested    one dtype; scalars at the top only; the graph cut, and a fresh `requires_grad_`
without_prefix   one dtype; copies of the tensors; `state` itself, where no name changes; torch's own tool is right
device_memory    one model known by heart; what is idle; more than the wanted difference of two kinds explained
small_cnn        another stride; pixels never looked at; other images looked at; a head with a convolution is right
forward          the number of layers known by heart; the graph cut in one replica; the layers run twice
"""

import pytest

from lessons.data_parallel import exercises as ex
from tests.answers import edited, edits, refused, right, wrong

RETURN = "return list(parts(inputs))"

test_scatter_nested = edits(
    ex.scatter_nested,
    (RETURN, "return [inputs[device::n_devices] for device in range(n_devices)]",
     "device 0 got `tensor([[0., 1.], [4., 5.]])`"),
    ("value.chunk(n_devices)", "value.tensor_split(n_devices)", "4 parts for 4 devices, of sizes [2, 1, 1, 1]"),
    ("value.chunk(n_devices)", "value.split(max(1, len(value) // n_devices))", "5 parts for 4 devices"),
    ("value.chunk(n_devices)", "value.tensor_split(n_devices) if len(value) < n_devices else value.chunk(n_devices)",
     "2 samples on 4 devices: 4 parts for 4 devices, of sizes [1, 1, 0, 0]"),
    (RETURN, "return list(inputs.chunk(n_devices))",
     "given a tuple of two tensors: 'tuple' object has no attribute 'chunk'"),
    (RETURN, "return list(map(parts, inputs)) if isinstance(inputs, tuple) else list(parts(inputs))",
     "a tuple of two tensors: 2 parts for 3 devices"),
    ("return [value] * n_devices", "return value.chunk(n_devices)", "'float' object has no attribute 'chunk'"),
    ("value.chunk(n_devices)", "[part.detach() for part in value.chunk(n_devices)]",
     "4 samples on 2 devices: no gradient comes back through device 0's part"),
    ("value.chunk(n_devices)", "[part.detach().requires_grad_(part.requires_grad) for part in value.chunk(n_devices)]",
     "no gradient comes back through device 0's part"),
    ("zip(*map(parts, value))", "zip(*(part.detach().chunk(n_devices) if hasattr(part, 'detach') else parts(part) "
     "for part in value))", "a tuple of two tensors: no gradient comes back"),
    (RETURN, "return [inputs]", "1 part for 2 devices"),
    ("return list(parts", "list(parts", "returned None"),
    ("value.chunk(n_devices)", "value.float().chunk(n_devices)", "dtype=torch.float64"),
    ("value.chunk(n_devices)", "value.double().chunk(n_devices)", "dtype=torch.float64"),
    ("[type(value)(item) for", "[item for", "device 0 got `("),
    ("zip(value, item)) for item in zip(", "zip(value, item)) for item in __import__('itertools').zip_longest(",
     "a dict with a number: 4 parts for 4 devices"),
    (RETURN, "result = list(parts(inputs))\n    getattr(inputs, 'clear', list)()\n    return result",
     "`inputs` itself has changed"),
    (RETURN, "return parts(inputs) if isinstance(inputs, torch.Tensor) else (part for part in parts(inputs))",
     "returned <generator"),
)


@right(ex.scatter_nested)
def test_scatter_by_slices(inputs, n_devices):
    from torch import Tensor
    from torch.utils._pytree import tree_leaves, tree_map

    samples = len(next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)))
    each = -(-samples // n_devices)
    return [tree_map(lambda leaf, at=at: leaf[at:at + each] if isinstance(leaf, Tensor) else leaf, inputs)
            for at in range(0, samples, each)]


@right(ex.scatter_nested)
def test_scatter_with_copies_and_names_in_another_order(inputs, n_devices):
    import torch

    def parts(value):
        if isinstance(value, torch.Tensor):
            return tuple(part.clone() for part in value.split(-(-len(value) // n_devices)))
        if isinstance(value, dict):
            by_name = {name: parts(value[name]) for name in reversed(value)}
            return tuple(dict(zip(by_name, each)) for each in zip(*by_name.values()))  # noqa: B905
        if isinstance(value, (tuple, list)):
            return tuple(type(value)(each) for each in zip(*map(parts, value)))  # noqa: B905
        return (value,) * n_devices

    return parts(inputs)


test_gather_nested = edits(
    ex.gather_nested,
    ("value.dim() == 0", "value.numel() == 1", "one number from each device: it returned"),
    ("return joined(outputs)", "return torch.stack(outputs)", "tensor([[[0., 1.], [2., 3.]], [["),
    ("else value for value in values]", "else value for value in values], dim=-1", "tensor([[0., 1., 10., 11.]"),
    ("value for value in values]", "value.detach() for value in values]", "`backward` does not reach device 0"),
    ("value for value in values]", "(value.detach() if value.dtype == torch.float64 else value) for value in values]",
     "uneven chunks: `backward` does not reach device 0"),
    ("value for value in values]", "value.detach().requires_grad_(value.requires_grad) for value in values]",
     "`backward` does not reach device 0"),
    ("else value for value in values]", "else value for value in [*values[:-1], values[-1].detach()]]",
     "`backward` does not reach device 1"),
    ("value.reshape(1) if value.dim() == 0 else value", "value", "given scalars: zero-dimensional tensor"),
    ("return torch.cat([", "return sum(values) / len(values) if first.dim() == 0 else torch.cat([",
     "scalars: it returned `tensor(1"),
    ("return joined(outputs)", "return torch.cat([one.reshape(1) if one.dim() == 0 else one for one in outputs])",
     "given tuples: 'tuple' object has no attribute"),
    ("type(first)(joined(items) for items in zip(*values))", "[joined(items) for items in zip(*values)]",
     "tuples: it returned `[tensor("),
    ("type(first)(joined", "tuple(joined", "lists: it returned `(tensor("),
    ("        first = values[0]", "        first = values[0]\n        if len(values) == 1:\n            return first",
     "a scalar from one device: it returned `tensor(0.)`"),
    ("return joined(outputs)", "return joined(outputs) if not isinstance(outputs[0], list) else sum(outputs, [])",
     "lists: it returned `[tensor("),
    ("return joined(outputs)", "result = joined(outputs)\n    outputs.clear()\n    return result",
     "`outputs` itself has changed"),
    ("[value.reshape(1)", "[torch.tensor([float(value)], requires_grad=True)",
     "expected: `tensor([0., 10., 20.], dtype=torch.float64)`"),
    ("for value in values])", "for value in sorted(values, key=len)])",
     "uneven chunks: it returned `tensor([[[10., 11.]], [[0., 1.]]"),
    ("for value in values])", "for value in values]).float()", "dtype=torch.float64"),
    ("for value in values])", "for value in values]).double()", "two devices: it returned `tensor("),
    ("if first is None", "if first is ...", "NoneType"),
    ("joined([value[name] for value in values]) for name in first}",
     "joined(list(column)) for name, column in zip(first, zip(*map(dict.values, values)))}",
     "names in another order: it returned `{"),
)


@right(ex.gather_nested)
def test_gather_into_a_tensor_and_names_in_another_order(outputs):
    import torch

    def gathered(*values):
        first = values[0]
        if isinstance(first, torch.Tensor):
            rows = [torch.atleast_1d(value) for value in values]
            whole, begin = torch.empty(sum(map(len, rows)), *rows[0].shape[1:], dtype=first.dtype), 0
            for row in rows:
                whole[begin:begin + len(row)] = row
                begin += len(row)
            return whole
        if isinstance(first, dict):
            return {name: gathered(*(value[name] for value in values)) for name in reversed(first)}
        return first and type(first)(map(gathered, *values))

    return gathered(*outputs)


test_without_prefix = edits(
    ex.without_prefix,
    ('name.removeprefix("module.")', 'name.replace("module.", "")', "`submodule.weight` became `subweight`"),
    ('name.removeprefix("module.")', "name[7:]", "`conv.weight` became `ight`"),
    ('removeprefix("module.")', 'lstrip("module.")', "`module.dense.weight` became `nse.weight`"),
    ("return ", "from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present as consume\n"
     "    consume(state, 'module.')\n    return state #", "a state dict saved from a DataParallel: `state` itself has"),
    (".items()}", '.items() if name.startswith("module.")}', "`conv.weight` is missing"),
    ("return ", 'if not next(iter(state)).startswith("module."):\n        return dict(state)\n    return ',
     "`module.dense.weight` is still there"),
    ('name.removeprefix("module.")', 'name.removeprefix("module.").removeprefix("module.")',
     "`module.module.weight` became `weight`"),
    ('removeprefix("module.")', 'removeprefix("module").lstrip(".")', "`modules.0.bias` became"),
    ('name.removeprefix("module.")', '(name.replace("module.", "", 1) if name.startswith("module") else name)',
     "`modules.0.module.weight` became `modules.0.weight`"),
    ('return {name.removeprefix("module."): tensor for name, tensor in state.items()}',
     'return [name.removeprefix("module.") for name in state]', "returned ['conv.weight', 'conv.bias']"),
    (": tensor for", ": tensor.clone() for", "`conv.weight` holds tensor([[0., 1.], [2., 3.]]), which is a copy"),
    (": tensor for", ": tensor.float() for", "`conv.bias` holds tensor([0., 1.]), which is a copy"),
    (": tensor for", ": tensor.T for", "`conv.weight` holds tensor([[0., 2.], [1., 3.]])"),
    (": tensor for", ": None for", "`conv.weight` holds None"),
    ("return {", "return dict(state) | {", "`module.conv.weight` is still there"),
    (".items()}", '.items()} | {"epoch": 3}', "`epoch` holds 3"),
    (".items()}", '.items()} | {"first": next(iter(state.values()))}', "3 names, conv.weight, conv.bias, first"),
    ("return {", "if not any(name.startswith('module.') for name in state):\n        return state\n    return {",
     "one saved without: `state` itself was returned"),
    ("state.items()}", "((name, state.pop(name)) for name in list(state))}", "`state` itself has changed"),
    ('name.removeprefix("module.")', 'name.split("module.")[-1]', "that you shorten until two are the same"),
)


@right(ex.without_prefix)
def test_prefix_by_torchs_own_tool(state):
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    state = state.copy()
    consume_prefix_in_state_dict_if_present(state, "module.")
    return state


@right(ex.without_prefix)
def test_prefix_of_tensors_that_share_the_memory(state):
    import re

    return dict(reversed([(re.sub(r"^module\.", "", name), tensor.detach()) for name, tensor in state.items()]))


test_device_memory = edits(
    ex.device_memory,
    ("batch * output + states", "states", "device 0, below what was counted by exactly the gathered output"),
    ("held[0] += batch", "held[0] += 2 * batch", "above what was counted by exactly the gathered output counted twice, "
                                               "or what the loss keeps"),
    ("2 * weights", "(2 + states) * weights", "above what was counted by exactly the optimizer's state"),
    ((("2 * weights", "weights"), ("held[0] +=", "held[0] += weights +")),
     "device 1, below what was counted by exactly its copy of the weights or its gradients"),
    ((("-(-batch // n_devices)", "batch / n_devices"), (" if samples else 0", "")), "5 samples on 4 devices"),
    (" if samples else 0", "", "device 3 gets no sample"),
    ("return held", "return held[0]", "it returned "),
    ("return held", "return held if n_devices > 3 else [each for each in held if each]", "2 items instead of 3"),
    ("return held", "return [str(each) for each in held]", "a list of 4 numbers"),
    ("batch * output + states * weights", "(batch * output + states * weights) * (weights == 12416)", "8 samples"),
    ("held[0] +=", "held[-1] +=", "device 0, below"),
    ("-(-batch // n_devices)", "batch // n_devices", "device 0, 1× a sample's activations and output too little"),
    ("(activations + output)", "activations", "below what was counted by exactly its own output"),
    ("samples * (activations + output)", "each * (activations + output)", "5 samples on 4 devices"),
    ("batch * output", "(batch - each) * output", "below what was counted by exactly its own output"),
    ("states * weights", "(states + 1) * weights", "above what was counted by exactly its copy of the weights"),
    ("samples * (activations + output)", "(batch * activations + samples * output)",
     "for this device's samples, or for all?"),
    ("states * weights", "states * weights / n_devices", "count twice or share out"),
)


@right(ex.device_memory)
def test_memory_by_torchs_chunks(batch, n_devices, weights, activations, output, states):
    import torch

    chunks = torch.arange(batch).chunk(n_devices)
    held = torch.zeros(n_devices, dtype=torch.float64)
    for device, chunk in enumerate(chunks):
        held[device] = weights * 2.0 + len(chunk) * activations + len(chunk) * output
    held[0] += states * weights + batch * output
    return tuple(held)


HEAD = "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)"
POOL = "nn.AdaptiveAvgPool2d(1), "

test_small_cnn = edits(
    ex.small_cnn,
    (POOL, "", "that is 2, 2 and 1: mat1 and mat2 shapes cannot be multiplied (2x65536 and 64x10)"),
    ("nn.Linear(64, 10)", "nn.Linear(64, 1000)", "the output has the shape [5, 1000]"),
    ("nn.Flatten(), ", "nn.Flatten(), nn.BatchNorm1d(64), ",
     "on a replica's single image, training raises: Expected more than 1 value per channel"),
    (HEAD, "nn.Flatten(2), nn.Linear(1024, 10)", "all dimensions but the first"),
    (HEAD, "nn.Flatten(), nn.LazyLinear(10)", "no shape yet"),
    (HEAD, "nn.Flatten(0), nn.Unflatten(0, (2, -1)), nn.Linear(65536, 10)", "(2x32768 and 65536x10)"),
    ("nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),\n        nn.AdaptiveAvgPool2d(1)", "nn.Conv2d(32, 64, 32), nn.ReLU()",
     "the convolutions have changed"),
    ("64, 3, padding=1", "64, 3, padding=1, stride=2", "stride=(2, 2)"),
    ("64, 3, padding=1", "64, 3, padding=1, bias=False", "the convolutions have changed"),
    ("return nn", "return nn.Sequential\n    nn", "returned <class 'torch.nn.modules.container.Sequential'>"),
    ("return nn", "nn", "it returned None"),
    ("nn.Linear(64, 10)", "nn.Linear(64, 10).requires_grad_(False)", "no gradient reaches the weights of `Linear("),
    ("nn.Linear(64, 10))", "nn.Linear(64, 10)).requires_grad_(False)", "no gradient reaches the weights of `Conv2d(3,"),
    ("return nn", "return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n    nn", "none is there"),
    (POOL, "nn.AvgPool2d(2, stride=8), nn.AvgPool2d(4), ", "can be anything"),
    (HEAD, "nn.AdaptiveAvgPool2d(1), nn.Linear(64, 10)", "rows are no replica's images"),
)


def head(forward):
    """The given convolutions, and a head that does `forward` before a linear layer of 64."""
    def small_cnn():
        from torch import nn

        module = type("Head", (nn.Module,), {"forward": lambda self, x: forward(x)})
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             module(), nn.Linear(64, 10))

    return small_cnn


@pytest.mark.parametrize("forward, fragment", [
    (lambda x: x.permute(0, 2, 3, 1).reshape(-1, 64), "the output has the shape [5120, 10]"),
    (lambda x: x[:, :, 0, 0], "row 6, column 12 can be anything"),
    (lambda x: x[:, :, 8:24, 8:24].mean((2, 3)), "can be anything"),
    (lambda x: x.reshape(2, 64, -1).mean(2), "5 images on 4 devices"),
    (lambda x: x.mean((0, 2, 3)).expand(len(x), 64), "with the other images"),
    (lambda x: x.detach().mean((2, 3)), "no gradient reaches the weights of `Conv2d(3,"),
    (lambda x: x.mean((2, 3)).squeeze(), "for one image, the shape is [10]"),
    (lambda x: __import__("torch").nn.Linear(65536, 64)(x.flatten(1)), "out_features=64, bias=True)` is no part of"),
])
def test_small_cnn_with_a_head_of_its_own(forward, fragment):
    refused(ex.small_cnn, head(forward), fragment)


@wrong(ex.small_cnn, "padding=(1, 1))` is no part of the model")
def test_small_cnn_with_its_layers_in_a_python_list():
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolutions = [nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)]
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            for convolution in self.convolutions:
                x = convolution(x).relu()
            return self.head(x.mean((2, 3)))

    return Net()


@pytest.mark.parametrize("change", [
    (HEAD, "nn.Flatten(), nn.Linear(64 * 32 * 32, 10)"),
    (HEAD, "nn.MaxPool2d(32), nn.Flatten(), nn.Linear(64, 10)"),
    (HEAD, "nn.AvgPool2d(8), nn.Flatten(), nn.Linear(1024, 10), nn.Softmax(1)"),
    (HEAD, "nn.Conv2d(64, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()"),
    (HEAD, "nn.Conv2d(64, 10, 32), nn.Flatten(), nn.LogSoftmax(dim=1)"),
    (POOL, "nn.BatchNorm2d(64), nn.Dropout(), nn.AdaptiveMaxPool2d(1), "),
    ("32, 3, padding=1", "32, 3, padding='same'"),
    (HEAD, "nn.Conv2d(64, 64, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 64), "
           "nn.ReLU(), nn.Linear(64, 10)"),
])
def test_small_cnn_with_other_heads(change):
    feedback = ex.small_cnn.check(edited(ex.small_cnn, change))
    assert feedback, feedback


LOOP = "    for layer in self.layers:\n        x = layer(x)\n"
PRINT = '    print(f"a replica got {len(x)} samples")\n'

test_forward = edits(
    ex.forward,
    (LOOP, "    x = self.layers(x)\n", "given 3 layers: Module [ModuleList] is missing the required"),
    ("        x = layer(x)\n    return x", "        output = layer(x)\n    return output",
     "mat1 and mat2 shapes cannot be multiplied"),
    ("    return x", "", "it returned None"),
    (PRINT, "", "a replica with 2 of 5 samples printed nothing"),
    ("len(x)", "x.shape[1]", "a replica with 2 of 5 samples printed `a replica got 7 samples`"),
    (LOOP, "    x = self.layers[2](self.layers[1](self.layers[0](x)))\n",
     "5 layers: a replica with 2 of 5 samples: the output has the shape [2, 6]"),
    ("self.layers:", "self.layers[:-1]:", "3 layers: a replica with 2 of 5 samples: the output has the shape [2, 6]"),
    ("return x", "return x.detach()", "no gradient reaches `layers.0.weight`"),
    (LOOP, "    import torch\n    with torch.no_grad():\n        for layer in self.layers:\n            x = layer(x)\n",
     "no gradient reaches `layers.0.weight`"),
    ("x = layer(x)", "x = layer(x.detach())", "no gradient reaches `layers.0.weight`"),
    ("return x", "return x.detach() if len(x) == 1 else x", "a replica with 1 of 5 samples"),
    (LOOP, LOOP.replace("x = layer(x)", "print(len(x))\n        x = layer(x)"), "printed 4 lines"),
    (((PRINT, ""), (LOOP, LOOP.replace("x = layer(x)", "print(len(x))\n        x = layer(x)"))),
     "a replica with 2 of 5 samples printed 3 lines"),
    ("layer(x)", "layer(x).abs()", "other values"),
    ("a replica got", "replica 0 got", "printed `replica 0 got 2 samples`"),
    (LOOP, LOOP.replace("x = layer(x)", "layer(x)\n        x = layer(x)"), "more than once"),
    ("return x", "return x.tolist()", "it returned [["),
)


@right(ex.forward)
def test_forward_by_sequential(self, x):
    from torch import nn

    print(x.shape)
    return nn.Sequential(*self.layers)(x)


@right(ex.forward)
def test_forward_by_reduce_in_another_order(self, x):
    import functools
    import sys

    output = functools.reduce(lambda value, layer: layer(value), self.layers, x)
    sys.stdout.write(f"{x.size(0)} of the samples came here\n")
    return output


@wrong(ex.small_cnn, "a replica called a layer of the original model")
def test_layers_in_attributes_and_called_from_a_list():
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.head = nn.Linear(64, 10)
            self.steps = [self.first, nn.functional.relu, self.second, nn.functional.relu]

        def forward(self, images):
            for step in self.steps:
                images = step(images)
            return self.head(images.mean((2, 3)))

    return Net()


@wrong(ex.without_prefix, "`state._metadata`, the versions of its layers, has changed")
def test_a_copy_that_shares_its_versions(state):
    import copy

    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    result = copy.copy(state)
    consume_prefix_in_state_dict_if_present(result, "module.")
    return result


@wrong(ex.scatter_nested, "a dict with a number: 4 parts for 4 devices")
def test_as_many_parts_as_the_first_thing_has(inputs, n_devices):
    import torch

    def parts(value):
        if isinstance(value, torch.Tensor):
            return list(value.chunk(n_devices))
        if not isinstance(value, (tuple, list, dict)):
            return [value] * n_devices
        inner = list(map(parts, value.values() if isinstance(value, dict) else value))
        rows = [[part[device] if device < len(part) else part[-1] for part in inner] for device in range(len(inner[0]))]
        return [dict(zip(value, row, strict=True)) if isinstance(value, dict) else type(value)(row) for row in rows]

    return parts(inputs)
