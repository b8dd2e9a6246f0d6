"""DataParallel: right answers in other styles, and kinds of mistakes that no row can be."""

import pytest

from lessons.data_parallel import exercises as ex
from tests.answers import edited, edits, refused, right, wrong


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


test_gather_nested = edits(  # the way back is cut in one place only
    ex.gather_nested,
    ("else value for value in values]", "else value for value in [*values[:-1], values[-1].detach()]]",
     "devices without a gradient: [1]"),
    ("value for value in values]", "value.detach().requires_grad_(value.requires_grad) for value in values]",
     "devices without a gradient: [0, 1]"))


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


@wrong(ex.without_prefix, "`state` has changed")
def test_a_copy_that_shares_its_versions(state):
    import copy

    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    result = copy.copy(state)
    consume_prefix_in_state_dict_if_present(result, "module.")
    return result


test_device_memory = edits(  # one model known by heart
    ex.device_memory,
    ("batch * output + states * weights", "(batch * output + states * weights) * (weights == 10744)", "5 samples on"))


@right(ex.device_memory)
def test_memory_by_torchs_chunks(batch, n_devices, weights, activations, output, states):
    import torch

    chunks = torch.arange(batch).chunk(n_devices)
    held = torch.zeros(n_devices, dtype=torch.float64)
    for device, chunk in enumerate(chunks):
        held[device] = weights * 2.0 + len(chunk) * activations + len(chunk) * output
    held[0] += states * weights + batch * output
    return tuple(held)


def head(forward):
    """The given convolutions, and a head that does `forward` before a linear layer of 64."""
    def small_cnn():
        from torch import nn

        module = type("Head", (nn.Module,), {"forward": lambda self, x: forward(x)})
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             module(), nn.Linear(64, 10))

    return small_cnn


@pytest.mark.parametrize("forward, fragment", [
    (lambda x: x.permute(0, 2, 3, 1).reshape(-1, 64), "`shape of output`[0][0] is 2048"),
    (lambda x: x[:, :, 0, 0], "a pixel that can be anything (row, column): [(6, 12)]"),
    (lambda x: x[:, :, 8:24, 8:24].mean((2, 3)), "a pixel that can be anything"),
    (lambda x: x.reshape(2, 64, -1).mean(2), "5 images on 4 devices"),
    (lambda x: x.mean((0, 2, 3)).expand(len(x), 64), "an image alone has another output"),
    (lambda x: x.detach().mean((2, 3)), "weights without a gradient: ['Conv2d(3,"),
    (lambda x: x.mean((2, 3)).squeeze(), "`shape of output`[2] is 1 long"),
    (lambda x: __import__("torch").nn.Linear(65536, 64)(x.flatten(1)), "no part of the model: ['Linear("),
])
def test_small_cnn_with_a_head_of_its_own(forward, fragment):
    refused(ex.small_cnn, head(forward), fragment)


@wrong(ex.small_cnn, "no part of the model: ['Conv2d(3")
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


@wrong(ex.small_cnn, "called by a replica, and not its own: ['Conv2d(3")
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


@pytest.mark.parametrize("change", [
    (ex.HEAD, "nn.Flatten(), nn.Linear(64 * 32 * 32, 10)"),
    (ex.HEAD, "nn.MaxPool2d(32), nn.Flatten(), nn.Linear(64, 10)"),
    (ex.HEAD, "nn.AvgPool2d(8), nn.Flatten(), nn.Linear(1024, 10), nn.Softmax(1)"),
    (ex.HEAD, "nn.Conv2d(64, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()"),
    (ex.HEAD, "nn.Conv2d(64, 10, 32), nn.Flatten(), nn.LogSoftmax(dim=1)"),
    ("nn.AdaptiveAvgPool2d(1), ", "nn.BatchNorm2d(64), nn.Dropout(), nn.AdaptiveMaxPool2d(1), "),
    ("32, 3, padding=1", "32, 3, padding='same'"),
    (ex.HEAD, "nn.Conv2d(64, 64, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 64), "
           "nn.ReLU(), nn.Linear(64, 10)"),
])
def test_small_cnn_with_other_heads(change):
    feedback = ex.small_cnn.check(edited(ex.small_cnn, change))
    assert feedback, feedback
