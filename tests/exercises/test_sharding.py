"""Sharding: right answers in other styles, and the wrong ones that no row of a table can be."""

import torch
import torch.distributed as dist

from lessons.sharding import exercises as ex
from tests.answers import right, wrong


@right(ex.sharded_adamw)
def test_torchs_own(model, steps, lr):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)
    for _ in steps:
        optimizer.step()
    return optimizer


@right(ex.sharded_adamw)
def test_flat_pieces_as_zero_does(model, steps, lr):
    n, rank = dist.get_world_size(), dist.get_rank()
    parameters = list(model.parameters())
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    full = torch.nn.functional.pad(flat, (0, -len(flat) % n))
    del flat
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, view in zip(parameters, full[:sum(sizes)].split(sizes), strict=True):
        parameter.data = view.view_as(parameter)
    piece = torch.nn.Parameter(full.chunk(n)[rank])
    optimizer = torch.optim.AdamW([piece], lr=lr)
    for _ in steps:
        grads = torch.cat([parameter.grad.flatten() for parameter in parameters])
        piece.grad = torch.nn.functional.pad(grads, (0, len(full) - len(grads))).chunk(n)[rank].clone()
        optimizer.step()
        dist.all_gather(list(full.chunk(n)), piece.detach().clone())
    return optimizer


@wrong(ex.sharded_adamw, "kept as it is")
def test_rounds_the_state_between_steps(model, steps, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    dtype = next(model.parameters()).dtype
    for _ in steps:
        optimizer.step()
        for state in optimizer.state.values():
            for name in "exp_avg", "exp_avg_sq":
                state[name] = state[name].to(torch.bfloat16).to(dtype)
    return optimizer


@right(ex.memory_per_rank)
def test_with_math_and_floats(frozen, added, ranks, stage):
    import math

    def pieces(since):
        cut = ranks if stage >= since else 1
        return math.ceil(frozen / cut), math.ceil(added / cut)

    return {"optimizer": 8.0 * pieces(1)[1], "gradients": 4.0 * pieces(2)[1],
            "parameters": 2.0 * pieces(3)[0] + 4.0 * pieces(3)[1]}


@right(ex.my_piece)
def test_number_by_number(files, total):
    n, rank = dist.get_world_size(), dist.get_rank()
    size, saved = -(-total // n), -(-total // 4)
    loaded, piece = {}, []
    for number in range(rank * size, min((rank + 1) * size, total)):
        index = number // saved
        if index not in loaded:
            loaded[index] = torch.load(files[index], weights_only=True)
        piece.append(loaded[index][number % saved])
    piece = torch.stack(piece) if piece else torch.zeros(0)
    return torch.nn.functional.pad(piece, (0, size - len(piece)))


@wrong(ex.my_piece, "`return` a tensor")
def test_a_list(files, total):
    return [0.0] * total


@wrong(ex.shard_it, "with all of its parameters")
def test_leaves_the_small_layers_out(model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.tokens, *model.blocks, model.head):
        fully_shard(layer)
    fully_shard(model, ignored_params={*model.positions.parameters(), *model.norm.parameters()})


@wrong(ex.shard_it, "with whole parameters at the same time: 5")
def test_a_unit_of_each_linear(model):
    """The blocks' norms are left for the last unit, so each block has whole parameters."""
    from torch.distributed.fsdp import fully_shard

    for layer in list(model.modules()):
        if isinstance(layer, (torch.nn.Linear, torch.nn.Embedding)):
            fully_shard(layer)
    fully_shard(model)


@right(ex.shard_it)
def test_with_a_mesh_and_the_outermost_unit_dropped_too(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.head, *reversed(model.blocks), model.norm, model.positions, model.tokens, model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)


@right(ex.shard_it)
def test_the_head_with_its_norm(model):
    from torch.distributed.fsdp import fully_shard

    for layer in (model.tokens, *model.blocks, [model.norm, model.head], model):
        fully_shard(layer)
