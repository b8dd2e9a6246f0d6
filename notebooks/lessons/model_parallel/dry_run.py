"""One process acts as rank 0 of thousands: a step of Llama 3 70B, with nothing allocated and nothing sent.

    dry_run((16, 128, 8), layers=3)

The mesh is (copies, shards, tensor): FSDP2 shards among `shards` ranks, `copies` hold the same, and `tensor`
ranks split each layer. RoPE is left out.
"""

import math
import warnings

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lessons.model_parallel.llama import Llama

PART = Shard(1)  # of the text: dimension 1 is its length


class Sent(TorchDispatchMode):
    """Bytes that a rank of a large ring sends: of each call the larger of what goes in and what comes out.

    An all-reduce counts twice, because it is a reduce-scatter and an all-gather.
    """

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.calls = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        space, name = operator.name().split("::")
        if space in ("c10d", "_c10d_functional") and "wait" not in name:
            sizes = [leaf.nbytes for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor)]
            self.bytes += max(sizes) * (2 if "reduce" in name and "scatter" not in name else 1)
            self.calls += 1
        return result


class FusedNorm(torch.autograd.Function):
    """An RMSNorm that keeps what CUDA's fused kernel keeps: its input, and a float32 number for each token.

    On a CPU torch computes a norm in steps and keeps their results: 10 bytes for each bf16 number, not 4.
    """

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum((0, 1))


def fuse(model, mesh, sequence):
    """Make the norms `FusedNorm`s; if `sequence`, of this rank's part of the text, then gather their results.

    The result is a DTensor, so that the gradients of all layers that use it are added up before they are sent, once.
    The sum of the norms' own gradients over the tensor ranks is left out: they are small.
    """
    def forward_of(norm):
        def forward(x):
            y = FusedNorm.apply(x, norm.weight)
            y = DTensor.from_local(y, mesh, (PART if sequence else Replicate(),), run_check=False)
            return y.redistribute(placements=(Replicate(),))

        return forward

    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.forward = forward_of(module)


def cut(model, mesh, sequence):
    """Split every linear layer among the tensor ranks, and shard what is left to each among the others."""
    out = PART if sequence else Replicate()
    for block in model.blocks:
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
        rows = {name: RowwiseParallel(output_layouts=out) for name in ("o", "down")}
        parallelize_module(block, mesh["tensor"], columns | rows)
    ends = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=out),
            "head": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh["tensor"], ends)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["copies", "shards"], mp_policy=policy)


def prepare(model, device, length):
    """Memory on `device` for a model that has been cut. Returns optimizer, tokens, and what trains a step."""
    model.to_empty(device=device)
    # In torch 2.11 the tracker counts too much. It counts twice what operators on lists change in place, so AdamW takes
    # one parameter at a time. When DTensor meets an operator with a new number, the tracker counts that operator's
    # tensors whole, as in all ranks together. AdamW's corrections are new numbers in each step, unless its betas are 0.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, betas=(0.0, 0.0))
    tokens = torch.zeros(1, length, dtype=torch.long, device=device)

    def train():
        # In one expression: a name for the scores would hold them during the whole backward.
        cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return optimizer, tokens, train


def step(layers, mesh, length, sequence, **shape):
    """What rank 0 holds and sends (GiB) and computes (TFLOP) on a text of `length` tokens."""
    with torch.device("meta"):
        model = Llama(layers, **shape)
    fuse(model, mesh["tensor"], sequence)
    total = sum(parameter.numel() for parameter in model.parameters())
    cut(model, mesh, sequence)
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors with a shape and no memory
        optimizer, tokens, train = prepare(model, "cpu", length)
        train()  # makes the optimizer's state; the next step is counted
        memory = FSDPMemTracker(model, optimizer)
        memory.track_inputs((tokens,))
        with memory, Sent() as sent, FlopCounterMode(display=False) as counter:
            train()
        (peak,) = memory.get_tracker_snapshot("peak").values()
        tensor = mesh["tensor"].size()  # the counter sees whole layers; a tensor rank computes its part
        flops = 0
        for operator, count in counter.get_flop_counts()["Global"].items():
            if "attention" not in str(operator):  # torch counts it on a CPU only from 2.15 on
                flops += count
        shards = sum(parameter.to_local().nbytes for parameter in model.parameters())
    return {
        "layers": layers,
        "parameters": total,
        "states": 4 * shards / 2**30,  # weights, gradients, and two numbers of AdamW's for each weight
        "peak": peak["Total"] / 2**30,
        "sent": sent.bytes / 2**30,
        "calls": sent.calls,
        "tflop": flops / tensor / 1e12,
    }


def dry_run(mesh, layers, sequence=False, length=4096):
    """A step of rank 0 of a mesh (copies, shards, tensor): what `step` counts, as a dict.

    With `sequence` the norms, and what is added around the layers, are cut by the length of the text.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(mesh))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = init_device_mesh("cpu", tuple(mesh), mesh_dim_names=("copies", "shards", "tensor"))
            return {"mesh": mesh, **step(layers, named, length, sequence)}
    finally:
        dist.destroy_process_group()
