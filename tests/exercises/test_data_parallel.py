"""DataParallel: right answers in other styles, and kinds of mistakes that no row can be."""

from lessons.data_parallel import exercises as ex
from tests.answers import edits, right


@right(ex.scatter_nested)
def test_scatter_by_slices(inputs, n_devices):
    from torch import Tensor
    from torch.utils._pytree import tree_leaves, tree_map

    samples = len(next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)))
    each = -(-samples // n_devices)
    return [tree_map(lambda leaf, at=at: leaf[at:at + each] if isinstance(leaf, Tensor) else leaf, inputs)
            for at in range(0, samples, each)]


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
     "devices without a gradient: [1]"))


@right(ex.without_prefix)
def test_prefix_by_torchs_own_tool(state):
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    state = state.copy()
    consume_prefix_in_state_dict_if_present(state, "module.")
    return state


@right(ex.device_memory)
def test_memory_by_torchs_chunks(batch, n_devices, weights, activations, output, states):
    import torch

    chunks = torch.arange(batch).chunk(n_devices)
    held = torch.zeros(n_devices, dtype=torch.float64)
    for device, chunk in enumerate(chunks):
        held[device] = weights * 2.0 + len(chunk) * activations + len(chunk) * output
    held[0] += states * weights + batch * output
    return tuple(held)
