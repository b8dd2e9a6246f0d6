"""Sharding: answers, wrong and right.

How each could be cheated, or a right answer refused, and what stands against it:
sharded_adamw    all the state, by hand, moved, not returned; broadcast too late; pieces, torch's own are right
memory_per_rank  rounded down; a stage's kind left whole; numbers of another type are right
my_piece         all files loaded; padding of four instead of N; a rank that has nothing but padding
shard_it         one unit; blocks kept whole; a part left unsharded; more units than asked for are right
"""

import threading

import torch
import torch.distributed as dist

from lessons.sharding import exercises as ex
from tests.answers import edits, right, wrong

test_sharded_adamw = edits(
    ex.sharded_adamw,
    ("torch.optim.AdamW(mine,", "torch.optim.AdamW(model.parameters(),", "keeps 38,600 bytes"),
    ("            dist.broadcast(parameter.data, src=owner)", "            pass", "4,825 weights have not moved"),
    ("torch.optim.AdamW(mine, lr=lr)", "torch.optim.AdamW(mine)", "moved 0.1 times as far as"),
    ("torch.optim.AdamW(mine, lr=lr)", "torch.optim.SGD(mine, lr=lr)", "own step: its weight decay and its eps"),
    ("torch.optim.AdamW(mine, lr=lr)", "torch.optim.Adam(mine, lr=lr)", "own step: its weight decay and its eps"),
    ("    for _ in steps:\n", "    for _ in steps:\n        for one in mine: one.grad /= 4\n", "averaged already"),
    ("    for _ in steps:\n", "    for _ in steps:\n        for one in model.parameters(): dist.all_reduce(one.grad)\n",
     "on the gradients as they are"),
    ("    for _ in steps:\n", "    for _ in steps:\n        optimizer = torch.optim.AdamW(mine, lr=lr)\n",
     "is the optimizer's state kept"),
    ("for _ in steps:", "for _ in [next(steps)]:", "returned after 0 of 3 steps"),
    ("owner == dist.get_rank()", "owner != dist.get_rank()", "has an owner, who steps it and hands it to the others"),
    ("src=owner)", "src=0)", "4,825 weights have not moved"),
    ("for _ in steps:", "for _ in list(steps):", "4,825 of rank 0's 4,825 weights have not moved"),
    ((("torch.optim.AdamW(mine,", "torch.optim.AdamW(model.parameters(),"),
      ("return optimizer", "return [optimizer.state[one] for one in mine]")), "keeps 38,600 bytes"),
)


@right(ex.sharded_adamw)
def test_torchs_own(model, steps, lr):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)
    for _ in steps:
        optimizer.step()
    return optimizer


@right(ex.sharded_adamw)
def test_flat_pieces_as_zero_does(model, steps, lr):
    n, rank, parameters = dist.get_world_size(), dist.get_rank(), list(model.parameters())
    flat = torch.cat([one.detach().flatten() for one in parameters])
    full = torch.nn.functional.pad(flat, (0, -len(flat) % n))
    del flat
    for one, view in zip(parameters, full[:sum(map(torch.numel, parameters))].split([*map(torch.numel, parameters)]),
                         strict=True):
        one.data = view.view_as(one)
    piece = torch.nn.Parameter(full.chunk(n)[rank])
    optimizer = torch.optim.AdamW([piece], lr=lr)
    for _ in steps:
        grads = torch.cat([one.grad.flatten() for one in parameters])
        piece.grad = torch.nn.functional.pad(grads, (0, len(full) - len(grads))).chunk(n)[rank].clone()
        optimizer.step()
        dist.all_gather(list(full.chunk(n)), piece.detach().clone())
    return optimizer


@right(ex.sharded_adamw)
def test_gathers_into_a_tensor_of_its_own(model, steps, lr):
    n, rank, parameters = dist.get_world_size(), dist.get_rank(), list(model.parameters())
    sizes, size = [one.numel() for one in parameters], -(-sum(one.numel() for one in parameters) // n)

    def flat(tensors):
        one = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(one, (0, n * size - len(one))).chunk(n)[rank].clone()

    piece = torch.nn.Parameter(flat(parameters))
    optimizer = torch.optim.AdamW([piece], lr=lr)
    for _ in steps:
        piece.grad = flat([one.grad for one in parameters])
        optimizer.step()
        full = torch.empty(n * size, dtype=piece.dtype)
        dist.all_gather(list(full.chunk(n)), piece.detach())
        for one, new in zip(parameters, full.split([*sizes, n * size - sum(sizes)]), strict=False):
            one.data.copy_(new.view_as(one))
    threading.Timer(0.3, lambda _: None, [full]).start()  # as gloo's thread holds it for a moment, on a busy machine
    return optimizer


def by_hand(first):
    """AdamW by hand, with new tensors in each step, which are counted from `first`."""

    def sharded_adamw(model, steps, lr):
        parameters, n, rank = list(model.parameters()), dist.get_world_size(), dist.get_rank()
        state = {}
        for number, _ in enumerate(steps, first):
            for index, one in enumerate(parameters):
                if index % n == rank:
                    m, v = state.get(index, (0, 0))
                    state[index] = m, v = 0.9 * m + 0.1 * one.grad, 0.999 * v + 0.001 * one.grad ** 2
                    move = (m / (1 - 0.9 ** number)) / ((v / (1 - 0.999 ** number)).sqrt() + 1e-8)
                    one.data = one.data * (1 - lr * 0.01) - lr * move
                dist.broadcast(one.data, src=index % n)
        return state

    return sharded_adamw


test_by_hand_with_new_tensors_in_each_step = right(ex.sharded_adamw)(by_hand(1))
test_by_hand_and_steps_counted_from_0 = wrong(ex.sharded_adamw, "up to nan away from a plain AdamW's")(by_hand(0))


@wrong(ex.sharded_adamw, "bytes beside parameters and gradients")
def test_by_hand_and_all_of_it(model, steps, lr):
    parameters, state = list(model.parameters()), {}
    for number, _ in enumerate(steps, 1):
        for one in parameters:
            m, v = state.get(one, (0, 0))
            state[one] = m, v = 0.9 * m + 0.1 * one.grad, 0.999 * v + 0.001 * one.grad ** 2
            move = (m / (1 - 0.9 ** number)) / ((v / (1 - 0.999 ** number)).sqrt() + 1e-8)
            one.data = one.data * (1 - lr * 0.01) - lr * move
    return state


@wrong(ex.sharded_adamw, "bytes beside parameters and gradients")
def test_plain_and_the_weights_moved(model, steps, lr):
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in steps:
        optimizer.step()
        vector_to_parameters(parameters_to_vector(model.parameters()).detach(), model.parameters())
    return optimizer


@wrong(ex.sharded_adamw, "weights have not moved")
def test_broadcast_after_the_loop_only(model, steps, lr):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters[dist.get_rank()::dist.get_world_size()], lr=lr)
    for _ in steps:
        optimizer.step()
    for index, one in enumerate(parameters):
        dist.broadcast(one.data, src=index % dist.get_world_size())
    return optimizer


@wrong(ex.sharded_adamw, "bytes beside parameters and gradients")
def test_a_plain_one_that_broadcasts_as_well(model, steps, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in steps:
        optimizer.step()
        for one in model.parameters():
            dist.broadcast(one.data, src=0)
    return optimizer


@wrong(ex.sharded_adamw, "weights have not moved")
def test_what_does_not_divide_is_nobodys(model, steps, lr):
    parameters, n, rank = list(model.parameters()), dist.get_world_size(), dist.get_rank()
    each = len(parameters) // n
    optimizer = torch.optim.AdamW(parameters[rank * each:(rank + 1) * each], lr=lr)
    for _ in steps:
        optimizer.step()
        for index, one in enumerate(parameters[:n * each]):
            dist.broadcast(one.data, src=index // each)
    return optimizer


@wrong(ex.sharded_adamw, "holds 0 bytes together")
def test_the_state_is_not_returned(model, steps, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in steps:
        optimizer.step()


test_memory_per_rank = edits(
    ex.memory_per_rank,
    ("-(-parameters // ranks)", "parameters // ranks", "1,001 parameters, 4 ranks, stage 1: optimizer: 2,000 bytes"),
    ("-(-parameters // ranks)", "round(parameters / ranks)", "and equal: round up"),
    ("8 * (piece if stage >= 1 else parameters)", "4 * -(-2 * parameters // (ranks if stage >= 1 else 1))",
     "and equal: round up"),
    ("8 * (piece", "12 * (piece", "AdamW keeps two for each parameter"),
    ("stage >= 2", "stage >= 1", "stage 1: gradients: 1,000 bytes"),
    ("stage >= 3", "stage >= 2", "stage 2: parameters: 1,000 bytes"),
    ("8 * (piece", "4 * (piece", "optimizer: 4,000 bytes"),
    ("4 * (piece if stage >= 3 else parameters)", "2 * (piece if stage >= 3 else parameters)", "stage 0: parameters"),
    ('"optimizer": 8', '"state": 8', "a dict with these keys"),
    ((("return {", "held = {"), ("parameters)}",
      "parameters)}\n    return {name: size / 2**20 for name, size in held.items()}")),
     "parameters: 0.003814697 bytes"),
    ("-(-parameters // ranks)", "parameters - (ranks - 1) * -(-parameters // ranks)", "the last one padded"),
)


@right(ex.memory_per_rank)
def test_with_math_and_floats(parameters, ranks, stage):
    import math

    whole, piece = float(parameters), float(math.ceil(parameters / ranks))
    sizes = [piece if stage >= since else whole for since in (3, 2, 1)]
    return {"parameters": 4 * sizes[0], "gradients": 4 * sizes[1], "optimizer": 8 * sizes[2]}


test_my_piece = edits(
    ex.my_piece,
    ("size, saved = -(-total // n)", "size, saved = total // n", "2 ranks, 13 numbers: rank 0 returned"),
    ("(rank + 1) * size, total)", "(rank + 1) * size)", "9 numbers: the piece is right, but rank 1 loaded the files"),
    ("if start < end:", "if True:", "rank "),
    ("part.new_zeros(size)", "torch.zeros(size)", "rank 0's piece is float32"),
    ("saved = -(-total // n), -(-total // len(files))", "saved = -(-total // n), total // 4", "13 numbers"),
    ("return torch.zeros(size) if piece is None else piece", "return piece", "returned None"),
    ("return torch.zeros(size) if piece is None else piece", "return piece.tolist()", "a tensor of [1.0, 2.0"),
    ("    piece = None\n", "    piece = None\n    from pathlib import Path\n"
     "    for file in files:\n        torch.load(Path(file))\n", "loaded the files [0, 1, 2, 3]"),
)


@wrong(ex.my_piece, "loaded the files [0, 1, 2, 3]")
def test_puts_the_whole_together_first(files, total):
    n, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.cat([torch.load(file) for file in files])[:total]
    return torch.nn.functional.pad(whole, (0, -total % n)).chunk(n)[rank].clone()


@wrong(ex.my_piece, "loaded the files [0, 1, 2, 3]")
def test_opens_all_of_them_itself(files, total):
    n, rank, parts = dist.get_world_size(), dist.get_rank(), []
    for file in files:
        with open(file, "rb") as opened:
            parts.append(torch.load(f=opened))
    return torch.nn.functional.pad(torch.cat(parts)[:total], (0, -total % n)).chunk(n)[rank].clone()


@right(ex.my_piece)
def test_number_by_number(files, total):
    n, rank = dist.get_world_size(), dist.get_rank()
    size, saved, loaded, piece = -(-total // n), -(-total // 4), {}, []
    for number in range(rank * size, min((rank + 1) * size, total)):
        index = number // saved
        if index not in loaded:
            loaded[index] = torch.load(files[index], weights_only=True)
        piece.append(loaded[index][number % saved])
    piece = torch.stack(piece) if piece else torch.zeros(0)
    return torch.nn.functional.pad(piece, (0, size - len(piece)))


test_shard_it = edits(
    ex.shard_it,
    ("    for block", "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n    FSDP(model)\n"
     "    for block", "the older FSDP"),
    ("    for block in model.blocks:\n        fully_shard(block)\n", "", "up to 4 blocks were whole"),
    ("fully_shard(block)\n", "fully_shard(block, reshard_after_forward=False)\n", "up to 4 blocks"),
    ("    fully_shard(model)\n", "", "are not sharded"),
    ("    for block", "    import copy\n\n    model = copy.deepcopy(model)\n    for block", "no copy, no wrapper"),
    ("    for block", "    fully_shard(model)\n    for block", "inner units come first"),
    ("    for block in model.blocks:\n        fully_shard(block)\n", "    fully_shard(model.blocks)\n",
     "each has a `forward`"),
    ("for block in model.blocks:", "for block in model.blocks[:2]:", "at the same time; 2 of 4 were given"),
    ("    fully_shard(model)\n", "    fully_shard(model)\n    for one, after in zip(model.blocks, model.blocks[1:]):\n"
     "        one.set_modules_to_forward_prefetch([after])\n", "the next one had been gathered already"),
)


@right(ex.shard_it)
def test_units_inside_blocks_too(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        for one in (block.qkv, block.out, block.up, block.down, block):
            fully_shard(one)
    fully_shard(model, reshard_after_forward=True)


@right(ex.sharded_adamw)
def test_views_of_pieces_and_of_gradients(model, steps, lr):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = list(model.parameters())
    cut = [one.detach().view(-1).tensor_split(ranks) for one in whole]
    pieces = [torch.nn.Parameter(parts[rank]) for parts in cut]
    optimizer = torch.optim.AdamW(pieces, lr=lr)
    for _ in steps:
        for one, piece in zip(whole, pieces, strict=True):
            piece.grad = one.grad.view(-1).tensor_split(ranks)[rank]
        optimizer.step()
        for parts in cut:
            for source, part in enumerate(parts):
                if part.numel():
                    dist.broadcast(part, src=source)
    return optimizer


@wrong(ex.shard_it, "between two steps rank 0 holds 100% of the parameters")
def test_a_mesh_that_copies(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("copies", "shards"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


@wrong(ex.my_piece, "loaded the files [0, 1, 2, 3]")
def test_reads_all_files_by_itself(files, total):
    import io
    from pathlib import Path

    import torch
    import torch.distributed as dist

    whole = torch.cat([torch.load(io.BytesIO(Path(file).read_bytes())) for file in files])[:total]
    size, rank = -(-total // dist.get_world_size()), dist.get_rank()
    piece, part = whole.new_zeros(size), whole[rank * size:(rank + 1) * size]
    piece[:len(part)] = part
    return piece
