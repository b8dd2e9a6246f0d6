"""DataParallel: right answers in other styles, and kinds of mistakes that no row can be."""

from lessons.data_parallel import exercises as ex
from tests.answers import edits, right


@right(ex.scatter_and_gather)
def test_by_slices_and_in_threads(replicas, inputs):
    from collections import OrderedDict
    from concurrent.futures import ThreadPoolExecutor

    import torch

    samples = max(len(value) for value in inputs.values() if torch.is_tensor(value))
    each = -(-samples // len(replicas))

    def work(number):
        part = {name: value[number * each:(number + 1) * each] if torch.is_tensor(value) else value
                for name, value in inputs.items()}
        return replicas[number](**part)

    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(work, range(-(-samples // each))))
    return OrderedDict((name, torch.stack([output[name] for output in outputs]) if outputs[0][name].dim() == 0
                        else torch.cat([output[name] for output in outputs])) for name in reversed(outputs[0]))


@right(ex.scatter_and_gather)
def test_by_torchs_own_functions_but_for_the_copies(replicas, inputs):
    import torch
    from torch.utils._pytree import tree_map

    chunks = {name: value.chunk(len(replicas)) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    others = {name: value for name, value in inputs.items() if name not in chunks}
    parts = [dict(zip(chunks, part, strict=True)) for part in zip(*chunks.values(), strict=True)]
    outputs = [replica(**others, **part) for replica, part in zip(replicas, parts, strict=False)]
    return tree_map(lambda *tensors: torch.hstack(tensors) if tensors[0].dim() < 2 else torch.vstack(tensors),
                    outputs[0], *outputs[1:])


test_scatter_and_gather = edits(
    ex.scatter_and_gather,
    # the way back is cut in one place only; a new tensor made of numbers is said to be that, not of another dtype
    ("torch.atleast_1d(output[name]) for output in outputs]",
     "torch.atleast_1d(output[name]) for output in outputs]\n        values[-1] = values[-1].detach()",
     "the replicas of devices [1]"),
    ("torch.cat(values)", "torch.tensor(torch.cat(values).tolist())", "the replicas of devices [0, 1]"),
    ("value.chunk(len(replicas))", "torch.tensor(value.tolist()).chunk(len(replicas))", "samples without a gradient"),
    # what it was given is not what it was
    ("joined = {}", "joined = {}; replicas[0].eval()", "`replicas` has changed"),
    ("joined = {}", "joined = {}; replicas.pop()", "`replicas` has changed"),
    ("joined = {}", "joined = {}; inputs['x'] = inputs['x'].clone()", "`inputs` has changed"),
    ("joined = {}", "joined = {}; inputs['x'].requires_grad_(False)", "`inputs` has changed"),
    ("joined = {}", "joined = {}; outputs[0]['loss'].backward(retain_graph=True)", "`inputs` has changed"),
    ("joined = {}", "joined = {}\n    for replica in replicas: replica.weight.grad = torch.ones(())",
     "`replicas` has changed"),
    ("joined = {}", "joined = {}; outputs = outputs[:1]", "with the samples of all devices"),
    ("outputs = [", "for replica in replicas: replica.eval()\n    outputs = [", "`replicas` has changed"),
    ((("outputs = [", "for replica in replicas: replica.eval()\n    outputs = ["),
      ("joined = {}", "joined = {}\n    for replica in replicas: replica.train()")), "in eval mode"),
    # more calls than chunks, and calls of one replica alone
    ("outputs = [", "replicas[0](**parts[0])\n    outputs = [", "calls by device"),
    ("[replica(**part)", "[replicas[0](**part)", "calls by device"),
    ("return joined", "return list(joined.values())", "a dict of tensors"))


@right(ex.without_prefix)
def test_prefix_by_torchs_own_tool(state):
    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

    state = state.copy()
    consume_prefix_in_state_dict_if_present(state, "module.")
    return state


test_without_prefix = edits(
    ex.without_prefix, ("): tensor", "): torch.nn.Parameter(tensor, tensor.is_floating_point())", "not copies"))

test_device_memory = edits(
    ex.device_memory,
    ("return held", "return [size / 2**20 for size in held]", "you say 0.02"),  # not rounded to 0
    ("return held", "return dict(enumerate(held))", "it returned a dict"))


@right(ex.device_memory)
def test_memory_by_torchs_chunks(batch, n_devices, weights, activations, output, states):
    import torch

    chunks = torch.arange(batch).chunk(n_devices)
    held = torch.zeros(n_devices, dtype=torch.float64)
    for device, chunk in enumerate(chunks):
        held[device] = weights * 2.0 + len(chunk) * activations + len(chunk) * output
    held[0] += states * weights + batch * output
    return tuple(held)
