"""The exercises of sharding: an optimizer in shards, its bytes, a checkpoint cut anew, FSDP in units."""

import gc
import math
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from helpers.exercises.alone import Alone
from helpers.exercises.engine import scratch
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, holds, nothing, same
from helpers.instruments.collectives import recorded
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.models import GPT

OWNER = ("each number, to the last one, has an owner, who steps it and hands it to the others before the "
         "next item is asked for")
STEP = ("compare with `torch.optim.AdamW`: its `lr`, its weight decay, its eps. The gradients are averaged "
        "already, so use them as they are")
KEPT = "the first step is right. Is the optimizer's state kept for the next one?"
RETURNED = "`return` the optimizer, or whatever holds the state: its bytes are counted"
SHARE = "which parameters does this rank's optimizer know? Is there a second copy of them?"
ADAMW, LOOP = "torch.optim.AdamW(mine,", "    for _ in steps:\n"


def plain_state(dtype):
    """The bytes that a plain AdamW keeps: two numbers for each weight."""
    return 2 * 4825 * dtype.itemsize


def at_most_half(wanted, dtype):
    return 0, plain_state(dtype) / 2 + 1024  # the step counters are small, and each rank has its own


def not_all_returned(mine, wanted, dtype):
    together, plain = sum(one["bytes kept beside weights and gradients"] for one in mine), plain_state(dtype)
    if together < 0.9 * plain:
        return (f"the weights are right, but what the ranks returned (rank 0: {mine[0]['returned']}) holds "
                f"{together:,} bytes together", f"{plain:,}: each part of the state in some rank")


def model_and_gradients(dtype):
    """18 tensors, 4,825 numbers, which four ranks cannot share evenly. And gradients for three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(8)), nn.Linear(24, 1)).to(dtype)
    # The gradients of biases are so small that AdamW's eps counts, so a wrong factor shows in the weights.
    return model, [[(1 if one.dim() > 1 else 1e-5) * torch.randn_like(one) for one in model.parameters()]
                   for _ in range(3)]


def bytes_beside(parameters, before, held):
    """The bytes that are held, without those of parameters that were given other storages than `before`."""
    gc.collect()
    _, limit = at_most_half({}, parameters[0].dtype)
    moved = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in parameters}
    beside = sum(size for place, size in moved.items() if place not in [one._cdata for one in before])
    end = time.monotonic() + 2  # a thread of gloo's holds tensors for a moment after their collective
    while held.now - beside > limit and time.monotonic() < end:
        time.sleep(0.01)
    return held.now - beside


class ShardedAdamw(Table, InGroup):
    title = "An AdamW that holds its share"
    task = ("Every rank holds the whole `model`. Each item of the iterator `steps` leaves new gradients in "
            "the parameters, which are averaged already and equal in all ranks. After each item, do what "
            "`torch.optim.AdamW(model.parameters(), lr=lr).step()` would do. All ranks must have the new "
            "weights before you ask for the next item. At the end return the optimizer, or whatever holds "
            "its state. Beside the parameters and their gradients keep no more than **half** of the bytes "
            "that a plain AdamW keeps. (A fair share for each of four ranks is a quarter.)")
    hints = (
        "Decide who steps what. Give each parameter to one rank, or cut all of them into pieces, as ZeRO-1 "
        "does.",
        "An AdamW of this rank's own parameters steps them. Then `dist.broadcast` each parameter from its "
        "owner (`src=`), in all ranks in the same order.",
        "`torch.distributed.optim.ZeroRedundancyOptimizer` is torch's own. By hand it is about ten lines.")
    explanation = ("Each parameter goes to the rank that has least so far. The optimizer knows only its own "
                   "parameters, so its state is about a quarter. A broadcast makes the weights equal again.")
    why = ("the weights are those of a plain AdamW, bit for bit. Only the bytes tell whether an optimizer is "
           "sharded. Whole parameters give uneven shares. ZeRO cuts one flat tensor, so that all ranks hold "
           "equally much.")
    world_sizes, slow = (4,), True
    cases = {"float32": torch.float32, "float64": torch.float64}

    def answer(model, steps, lr):
        import torch
        import torch.distributed as dist

        owners, load = {}, [0] * dist.get_world_size()
        for parameter in model.parameters():
            owners[parameter] = load.index(min(load))
            load[owners[parameter]] += parameter.numel()
        mine = [parameter for parameter, owner in owners.items() if owner == dist.get_rank()]
        optimizer = torch.optim.AdamW(mine, lr=lr)
        for _ in steps:
            optimizer.step()
            for parameter, owner in owners.items():
                dist.broadcast(parameter.data, src=owner)
        return optimizer

    def observe(sharded_adamw, dtype):
        (model, given), still, norms = model_and_gradients(dtype), [], []
        parameters = list(model.parameters())
        storages = [one.untyped_storage() for one in parameters]  # kept, so that no new one gets their places

        def steps():
            for gradients in given:
                for one, gradient in zip(parameters, gradients, strict=True):
                    one.grad = gradient
                before = parameters_to_vector(parameters).detach()
                yield
                now = parameters_to_vector(one.contiguous() for one in parameters)
                still.append((now == before).sum().item())
                norms.append({name: one.detach().norm(1).item() for name, one in model.named_parameters()})

        with held_bytes() as held:
            kept = sharded_adamw(model, steps(), 0.01)
        return {"returned": type(kept).__name__, "steps": len(norms), "weights that have not moved": still,
                "norms after the first step": norms[:1], "norms after the next ones": norms[1:],
                "bytes kept beside weights and gradients": bytes_beside(parameters, storages, held)}

    rules = (
        same("steps", "`for _ in steps:` goes on until there are no more"),
        same("weights that have not moved", OWNER),
        same("norms after the first step", STEP, within=1e-5),
        same("norms after the next ones", KEPT, within=1e-5),
        holds(not_all_returned, RETURNED),
        between("bytes kept beside weights and gradients", at_most_half, SHARE))
    mistakes = (
        ("dist.broadcast(parameter.data, src=owner)", "pass", OWNER),
        (ADAMW, "torch.optim.Adam(mine,", STEP),
        (LOOP, f"{LOOP}        optimizer = torch.optim.AdamW(mine, lr=lr)\n", KEPT),
        (LOOP, f"{LOOP}        for one in mine: one.grad /= 4\n", STEP),
        ("    return optimizer\n", "", RETURNED),
        (ADAMW, "torch.optim.AdamW(model.parameters(),", SHARE))


PIECE, PARTS = "-(-parameters // ranks)", "as many equally long pieces of whole parameters as ranks: round up"
TWO = "AdamW keeps two numbers for each parameter, of 4 bytes each"


def cut_at(case):
    parameters, ranks, stage = case
    if stage == 0:
        return "stage 0 cuts nothing. Each number has 4 bytes, and AdamW keeps two for each parameter"
    return f"which kinds does stage {stage} cut? A piece has {-(-parameters // ranks):,} parameters"


class MemoryPerRank(Table, Alone):
    title = "Predict: the states of one rank"
    task = ("A model with `parameters` parameters, in float32, is trained with AdamW by `ranks` ranks. "
            "`stage` is 0 for DDP, or ZeRO's 1, 2 or 3. Return the bytes that one rank holds for parameters, "
            "gradients and the optimizer's state, in a dict with the keys `\"parameters\"`, `\"gradients\"` "
            "and `\"optimizer\"`. What is shared out is cut into equal pieces of whole parameters, padded if "
            "necessary.")
    hints = ("Stage 1 shares out the optimizer's state, stage 2 the gradients as well, stage 3 all three.",
             "A piece has `ceil(parameters / ranks)` parameters: `-(-parameters // ranks)` in whole numbers.")
    explanation = ("The later the stage, the more kinds are cut. Each number has 4 bytes, and AdamW keeps "
                   "two numbers for each parameter.")
    why = ("this is the first thing to compute before you rent GPUs. In float32 the states of 175 billion "
           "parameters are 2,800 GB, which no GPU has; each of 64 GPUs holds 44 GB. Activations come on "
           "top, and are not shared out.")
    cases = {f"{parameters:,} parameters, {ranks} ranks, stage {stage}": (parameters, ranks, stage)
             for parameters, ranks in ((1000, 4), (1001, 4), (7, 8)) for stage in range(4)}

    def answer(parameters, ranks, stage):
        piece = -(-parameters // ranks)
        return {"parameters": 4 * (piece if stage >= 3 else parameters),
                "gradients": 4 * (piece if stage >= 2 else parameters),
                "optimizer": 8 * (piece if stage >= 1 else parameters)}

    def observe(memory_per_rank, case):
        got = memory_per_rank(*case)
        return {"bytes": repr(got) if not isinstance(got, dict) else {kind: float(got[kind]) for kind in got}}

    rules = (same("bytes", cut_at),)
    mistakes = (
        (PIECE, "parameters // ranks", PARTS),
        (PIECE, "parameters / ranks", PARTS),
        ("8 * (piece", "4 * (piece", TWO),
        ("8 * (piece", "12 * (piece", TWO),
        ("stage >= 2", "stage >= 1", "the gradients are shared out at stage 2, and not before"),
        ("stage >= 3", "stage >= 2", "the parameters are shared out at stage 3, and not before"))


EVERY_FILE = "which files hold numbers of this rank's piece? The zeros of the padding need no file"
LOAD_ALL = "    parts = [torch.load(file) for file in files]\n"
DTYPE = "make the piece in the dtype of what is loaded"


class MyPiece(Table, InGroup):
    title = "Saved on four, resumed on N"
    task = ("Four ranks have saved a flat tensor of `total` numbers. It was padded with zeros to a multiple "
            "of four, and rank *i* wrote its quarter to `files[i]` with `torch.save`. Now there are N ranks. "
            "Return this rank's piece of the same tensor for N ranks: pad the `total` numbers with zeros to "
            "a multiple of **N**, cut them into N equal pieces, and take the piece with this rank's number. "
            "Load only files that hold some of this piece's numbers, because the whole may not fit into "
            "memory.")
    hints = (
        "This rank's piece begins at `rank * size` and ends at `(rank + 1) * size`, with `size = -(-total // "
        "N)`. But the tensor ends at `total`, and zeros follow.",
        "File *i* holds the numbers from `i * saved` to `(i + 1) * saved`, with `saved = -(-total // 4)`. "
        "Load it only if this overlaps with your piece before `total`.")
    explanation = ("For each file, the part that lies in this rank's piece and before `total` is copied to "
                   "where it belongs. Files without such a part are not opened.")
    why = ("a distributed checkpoint does this for every tensor of a model. For this its `.metadata` says "
           "which file holds which part. If you put the whole together first, you need a machine that can "
           "hold it.")
    world_sizes = (2, 3, 5)
    cases = {"16 numbers": (16, "float32"), "13 numbers": (13, "float64"), "9 numbers": (9, "float32")}

    def answer(files, total):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        size, saved = -(-total // n), -(-total // len(files))
        piece = None
        for index, file in enumerate(files):
            start, end = max(index * saved, rank * size), min((index + 1) * saved, (rank + 1) * size, total)
            if start < end:
                part = torch.load(file)[start - index * saved:end - index * saved]
                piece = part.new_zeros(size) if piece is None else piece
                piece[start - rank * size:end - rank * size] = part
        return torch.zeros(size) if piece is None else piece

    def observe(my_piece, case):
        total, dtype = case
        flat = torch.zeros(-(-total // 4) * 4, dtype=getattr(torch, dtype))
        flat[:total] = torch.arange(1, total + 1)
        opened = set()
        with scratch() as folder:
            files = [str(Path(folder, f"rank{rank}.pt")) for rank in range(4)]
            for file, quarter in zip(files, flat.chunk(4), strict=True):
                torch.save(quarter.clone(), file)
            sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0])))  # it stays
            piece = my_piece(files, total)
        if not isinstance(piece, torch.Tensor):
            return {"piece": f"a {type(piece).__name__}, no tensor"}
        return {"piece": piece.tolist(), "dtype": str(piece.dtype) if piece.any() else "of no file",
                "files loaded": ", ".join(Path(file).stem for file in files if file in opened)}

    rules = (same("piece", "where does this rank's piece begin and end, and where does the tensor end? (Its "
                           "numbers are 1, 2, 3 …)"),
             same("dtype", DTYPE), same("files loaded", EVERY_FILE))
    mistakes = (
        ("size, saved = -(-total // n)", "size, saved = total // n", "who has the last numbers? Round up"),
        ("saved = -(-total // n), -(-total // len(files))", "saved = -(-total // n), total // len(files)",
         "how long is a file? It is padded, too"),
        ("    piece = None\n", f"{LOAD_ALL}    piece = None\n", EVERY_FILE),
        ("part.new_zeros(size)", "torch.zeros(size)", DTYPE),
        ("return torch.zeros(size) if piece is None else piece", "return piece",
         "a rank whose piece is all padding returns a tensor, too: of zeros"))


UNITS = ("what does one call of `fully_shard` gather together, and when is it dropped again? The last call "
         "gathers everything that had no call of its own. And what does `reshard_after_forward` say?")
INNER = "call `fully_shard` for inner modules first, and for what is around them last. Each has a `forward`"
WHOLE = "the last call is for the whole model, and for this one, not for a copy"
MANY = "each block needs one gather in forward: make a unit of each block, none inside it, prefetch nothing"
BLOCKS, ROOT = "    for block in model.blocks:\n        fully_shard(block)\n", "    fully_shard(model)\n"
INSIDE = ("        for one in (block.qkv, block.up):\n            fully_shard(one)\n"
          "        fully_shard(block)\n")


class ShardIt(Table, InGroup):
    title = "Hunt: FSDP saves nothing"
    task = ("`model` is a `GPT` of `helpers.models`: embeddings, a list `model.blocks`, a norm and a head. "
            "Make it an FSDP2 model with `fully_shard`, in place. While it computes forward, no more than "
            "**one** block may be whole, and each block is gathered in **one** collective. (What lies "
            "outside the blocks may stay whole.)")
    hints = ("Each call of `fully_shard` makes one unit of the parameters that are not yet in another unit. "
             "What is in the only unit of this line?",
             "Call it for the inner modules first, then for the whole: the last call takes what is left.")
    explanation = ("One unit for each block, and one for the rest. A unit is gathered before its module's "
                   "forward and dropped after it. The outermost unit stays whole until backward, by default.")
    why = ("the loss is right either way, and so is the memory between two steps. Only the peak tells: with "
           "one unit around everything, FSDP gathers the whole model before the first layer computes.")
    timeout, patience, slow = 40, 10, True
    cases = {"4 blocks": 4, "6 blocks": 6}

    def answer(model):
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)

    def observe(shard_it, layers):
        from torch.distributed.tensor import DTensor

        warnings.simplefilter("ignore")  # what FSDP says to models whose output is a view
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = GPT(32, layers, length=8, vocabulary=32)
        block, total = (sum(one.nbytes for one in part.parameters()) for part in (model.blocks[0], model))
        shard_it(model)
        not_sharded = [name for name, one in model.named_parameters() if not isinstance(one, DTensor)]
        if not_sharded:
            return {"parameters that are not sharded": not_sharded}
        gathers = []
        for one in model.blocks:  # how many gathers there have been when a block begins, its own among them
            one.register_forward_pre_hook(lambda *_: gathers.append(
                sum("all_gather" in entry["profiling_name"] for entry in recorded())))
        with memory_by_kind(model, torch.optim.SGD(model.parameters(), lr=0.1)) as forward:
            loss = model(torch.arange(16).view(2, 8)).square().mean()
        loss.backward()
        whole = (max(one.gathered for one in forward) - (total - layers * block)) / block
        return {"parameters that are not sharded": [], "loss": loss.item(),
                "gradients": [one.grad.full_tensor().norm().item() for one in model.parameters()],
                "blocks whole at the same time": math.ceil(whole - 0.1),
                "gathers between first and last block": gathers[-1] - gathers[0]}

    rules = (
        nothing("parameters that are not sharded", WHOLE, "none: each is a DTensor"),
        same("loss", "what else was changed?", within=1e-4),
        same("gradients", "what else was changed?", within=1e-4),
        between("blocks whole at the same time", lambda wanted, case: (0, 1), UNITS),
        same("gathers between first and last block", MANY))
    mistakes = (
        (BLOCKS, "", UNITS),
        ("fully_shard(block)", "fully_shard(block, reshard_after_forward=False)", UNITS),
        ("        fully_shard(block)\n", INSIDE, MANY),
        (ROOT, "", WHOLE))
    stops = ((BLOCKS, ROOT + BLOCKS, "Invariant encountered", INNER),
             (BLOCKS, "    fully_shard(model.blocks)\n", "do not implement forward", INNER))


sharded_adamw, memory_per_rank, my_piece, shard_it = ShardedAdamw(), MemoryPerRank(), MyPiece(), ShardIt()
