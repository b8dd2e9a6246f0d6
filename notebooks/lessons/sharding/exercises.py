"""The exercises of sharding: an optimizer in shards, its bytes predicted, a checkpoint cut anew, FSDP in units."""

import contextlib
import gc
import math
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim.optimizer import register_optimizer_step_post_hook

from helpers.exercises.alone import Alone
from helpers.exercises.engine import scratch
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, each, holds, nothing, same
from helpers.instruments.collectives import recorded
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.models import GPT

GOES_ON = "`for _ in steps:` goes on until there are no more"
OWNER = ("each number, to the last one, has an owner, who steps it and hands it to the others before the next item is "
         "asked for")
STEP = ("what `torch.optim.AdamW` does: its `lr`, its weight decay, its eps, on the gradients as they are, averaged "
        "already; and its state in the parameters' dtype")
KEPT = "the first step is right: is the optimizer's state kept for the next one?"
RETURNED = "`return` the optimizer, or whatever holds the state: its bytes are counted"
SHARE = "which parameters does this rank's optimizer know? Is there a second copy of them?"
ADAMW, LOOP = "torch.optim.AdamW(mine,", "    for _ in steps:\n"


def plain_state(dtype):
    """The bytes that a plain AdamW keeps: two numbers for each weight."""
    return 2 * 4825 * dtype.itemsize


def at_most_half(wanted, dtype):
    return 0, plain_state(dtype) / 2 + 1024  # the step counters are small, and everybody's own


def not_all_returned(mine, wanted, dtype):
    together, plain = sum(one["bytes kept beside weights and gradients"] for one in mine), plain_state(dtype)
    if together < 0.9 * plain:
        return (f"the weights are right, but what the ranks returned (rank 0: {mine[0]['returned']}) holds "
                f"{together:,} bytes together",
                f"{plain:,}: all of the state is somewhere")


def model_and_gradients(dtype):
    """18 tensors, 4,825 numbers: nothing that four ranks could share out evenly. And gradients for three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(8)), nn.Linear(24, 1)).to(dtype)
    # The gradients of biases are so small that AdamW's eps counts: a factor is seen in the weights.
    scales = [1 if one.dim() > 1 else 1e-5 for one in model.parameters()]
    return model, [[scale * torch.randn_like(one) for scale, one in zip(scales, model.parameters(), strict=True)]
                   for _ in range(3)]


def give(parameters, gradients):
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient


@contextlib.contextmanager
def optimizer_states():
    """Of all optimizers that step within the block, the state that they have: {place: bytes}."""
    found = {}

    def look(optimizer, *_):
        values = [value for state in optimizer.state.values() for value in state.values()]
        found.update((one.data_ptr(), one.nbytes) for one in values if getattr(one, "ndim", 0))

    with register_optimizer_step_post_hook(look):
        yield found


def bytes_beside(parameters, before, held):
    """The bytes that are held, without those of parameters that were given other storages than `before`."""
    gc.collect()
    _, limit = at_most_half({}, parameters[0].dtype)
    moved = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in parameters}
    beside = sum(size for place, size in moved.items() if place not in [one._cdata for one in before])
    end = time.monotonic() + 2  # a thread of gloo's lets go of tensors a moment after their collective is over
    while held.now - beside > limit and time.monotonic() < end:
        time.sleep(0.01)
    return held.now - beside


class ShardedAdamw(Table, InGroup):
    title = "An AdamW that holds its share"
    task = ("Every rank holds the whole `model`. With each item of the iterator `steps` the parameters have "
            "new gradients, averaged already, and equal in all ranks. After each, do what "
            "`torch.optim.AdamW(model.parameters(), lr=lr).step()` would do, so that all ranks have the new "
            "weights before you ask for the next item. At the end return the optimizer, or whatever holds "
            "its state. Beside the parameters and their gradients keep no more than **half** of the bytes "
            "that a plain AdamW keeps. (A fair share for each of four ranks is a quarter.)")
    hints = (
        "Who steps what? Give each parameter to one rank, or cut all of them into pieces, as ZeRO-1 does.",
        "An AdamW of this rank's own parameters steps them. Then everybody needs everybody's: "
        "`dist.broadcast` each from its owner (`src=`), in all ranks in the same order.",
        "`torch.distributed.optim.ZeroRedundancyOptimizer` is torch's own; by hand it is about ten lines.",
    )
    explanation = ("Each parameter goes to the rank that has least so far. The optimizer knows only its own, "
                   "so its state is about a quarter. A broadcast makes the weights equal again.")
    why = ("the weights are those of a plain AdamW, bit for bit: only the bytes tell whether an optimizer "
           "is sharded. Whole parameters are uneven; ZeRO cuts one flat tensor, so all hold equally much.")
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
        storages = [one.untyped_storage() for one in parameters]  # kept: no new one has an old one's place

        def steps():
            for gradients in given:
                give(parameters, gradients)
                before = parameters_to_vector(parameters).detach()
                yield
                now = parameters_to_vector(one.contiguous() for one in parameters)
                still.append((now == before).sum().item())
                norms.append({name: one.detach().norm(1).item() for name, one in model.named_parameters()})

        with optimizer_states() as states, held_bytes() as held:
            kept = sharded_adamw(model, steps(), 0.01)
        return {
            "returned": type(kept).__name__,
            "steps": len(norms),
            "weights that have not moved": still,
            "norms after the first step": norms[:1],
            "norms after the next ones": norms[1:],
            "bytes kept beside weights and gradients": bytes_beside(parameters, storages, held),
            "bytes in optimizers": sum(states.values())}

    rules = (
        same("steps", GOES_ON),
        same("weights that have not moved", OWNER),
        same("norms after the first step", STEP, within=1e-5),
        same("norms after the next ones", KEPT, within=1e-5),
        holds(not_all_returned, RETURNED),
        between("bytes kept beside weights and gradients", at_most_half, SHARE),
        between("bytes in optimizers", at_most_half, SHARE),
    )
    mistakes = (
        ("dist.broadcast(parameter.data, src=owner)", "pass", OWNER),
        ("src=owner", "src=0", OWNER),
        (ADAMW, "torch.optim.Adam(mine,", STEP),
        (LOOP, f"{LOOP}        optimizer = torch.optim.AdamW(mine, lr=lr)\n", KEPT),
        (LOOP, f"{LOOP}        for one in mine: one.grad /= 4\n", STEP),
        ("    return optimizer\n", "", RETURNED),
        (ADAMW, "torch.optim.AdamW(model.parameters(),", SHARE),
    )


PIECE, PARTS = "-(-parameters // ranks)", "as many pieces as ranks, all equally long, of whole parameters: round up"


def cut_at(case):
    parameters, ranks, stage = case
    if stage == 0:
        return "stage 0 cuts nothing: 4 bytes for a number, and AdamW keeps two for each parameter"
    return (f"which kinds are cut at stage {stage}? A piece has {-(-parameters // ranks):,} parameters, of 4 bytes "
            "for each number")


class MemoryPerRank(Table, Alone):
    title = "Predict: the states of one rank"
    task = ("A model has so many `parameters`, in float32, and is trained with AdamW by `ranks` ranks. "
            "`stage` is 0 for DDP, or ZeRO's 1, 2 or 3. Return the bytes that one rank holds for "
            "parameters, gradients and the optimizer's state, in a dict with the keys `\"parameters\"`, "
            "`\"gradients\"` and `\"optimizer\"`. What is shared out is cut into equal pieces, of whole "
            "parameters, padded if need be.")
    hints = (
        "Stage 1 shares out the optimizer's state, stage 2 the gradients as well, stage 3 all three.",
        "A piece has `ceil(parameters / ranks)` parameters: `-(-parameters // ranks)` in whole numbers.",
    )
    explanation = ("The later the stage, the more is cut; each number has 4 bytes, and AdamW keeps two for "
                   "each parameter.")
    why = ("this is the first thing to compute before you rent GPUs: 175 billion parameters are 2,800 GB of "
           "states, and no GPU has that; 64 of them hold 44 GB each. Activations come on top, and are not "
           "shared out.")
    cases = {f"{parameters:,} parameters, {ranks} ranks, stage {stage}": (parameters, ranks, stage)
             for parameters, ranks in ((1000, 4), (1001, 4), (7, 8)) for stage in range(4)}

    def answer(parameters, ranks, stage):
        piece = -(-parameters // ranks)
        return {"parameters": 4 * (piece if stage >= 3 else parameters),
                "gradients": 4 * (piece if stage >= 2 else parameters),
                "optimizer": 8 * (piece if stage >= 1 else parameters)}

    def observe(memory_per_rank, case):
        got = memory_per_rank(*case)
        if not isinstance(got, dict):
            return {"bytes": repr(got)}
        return {"bytes": {kind: float(size) for kind, size in got.items()}}

    rules = (same("bytes", cut_at),)
    mistakes = (
        (PIECE, "parameters // ranks", PARTS),
        (PIECE, "round(parameters / ranks)", PARTS),
        (PIECE, "parameters / ranks", PARTS),
        ("8 * (piece", "4 * (piece", "AdamW keeps two numbers for each parameter, of 4 bytes each"),
        ("8 * (piece", "12 * (piece", "AdamW keeps two numbers for each parameter, of 4 bytes each"),
        ("stage >= 2", "stage >= 1", "the gradients are shared out at stage 2, and not before"),
        ("stage >= 3", "stage >= 2", "the parameters are shared out at stage 3, and not before"),
        ("stage >= 1", "stage >= 2", "the optimizer's state is shared out at stage 1 already"),
    )


SAVED = "saved = -(-total // n), -(-total // len(files))"
NONE = "return torch.zeros(size) if piece is None else piece"
LISTED = "return [0.0] * size if piece is None else piece.tolist()"
WHERE = ("where does this rank's piece begin and end, and where does the tensor end? (Its numbers are 1, 2, 3 … How "
         "long is a file?)")
EVERY_FILE = "which files hold numbers of this rank's piece? Zeros of the padding can be made"
LOAD_ALL = "    parts = [torch.load(file) for file in files]\n"


class MyPiece(Table, InGroup):
    title = "Saved on four, resumed on N"
    task = ("Four ranks have saved a flat tensor of `total` numbers: it was padded with zeros to a multiple "
            "of four, and rank *i* wrote its quarter to `files[i]` with `torch.save`. Now there are N "
            "ranks. Return this rank's piece of the same tensor for N ranks: padded with zeros to a "
            "multiple of **N**, cut into N equal pieces, the piece with this rank's number. Load only files "
            "that hold some of its `total` numbers: the whole may not fit.")
    hints = (
        "This rank's piece begins at `rank * size` and ends at `(rank + 1) * size`, with `size = -(-total "
        "// N)`; but the tensor ends at `total`, and zeros follow.",
        "File *i* holds the numbers from `i * saved` to `(i + 1) * saved`, with `saved = -(-total // 4)`. "
        "Which of them overlap with yours? A file that holds nothing but padding is not needed either.",
    )
    explanation = ("For each file, the part of it that lies in this rank's piece, and before `total`, is "
                   "copied to where it belongs. Files without such a part are not opened.")
    why = ("this is what a distributed checkpoint does for every tensor of a model, and why its `.metadata` "
           "says which file holds which part. Whoever first puts the whole together needs a machine that "
           "holds the whole.")
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
            return {"piece": repr(piece)}
        return {
            "piece": piece.tolist(),
            "dtype": str(piece.dtype) if piece.any() else "of no file",
            "files loaded": ", ".join(Path(file).stem for file in files if file in opened)}

    rules = (
        same("piece", WHERE),
        same("dtype", "make the piece in the dtype of what is loaded"),
        same("files loaded", EVERY_FILE),
    )
    mistakes = (
        ("size, saved = -(-total // n)", "size, saved = total // n", "who has the last numbers? Round up"),
        (SAVED, "saved = -(-total // n), total // len(files)", "how long is a file? It is padded, too"),
        ("(rank + 1) * size, total)", "(rank + 1) * size)", "a file of nothing but padding is not needed"),
        ("    piece = None\n", f"{LOAD_ALL}    piece = None\n", EVERY_FILE),
        ("part.new_zeros(size)", "torch.zeros(size)", "make the piece in the dtype of what is loaded"),
        (NONE, "return piece", "a rank with nothing but padding has a piece as well: of zeros"),
        (NONE, LISTED, "return a tensor, not a list"),
    )
    stops = (("if start < end:", "if True:", "must match the existing size (0)",
              "a file that has no number of this piece: nothing is to be copied"),)


WHOLE = ("the last call is for the whole model, and for this one: no copy, no wrapper, no `ignored_params` and no "
         "`unshard()`")
UNITS = ("what does one call of `fully_shard` gather together, and when is it dropped again? The last one gathers all "
         "that has had no call of its own. And what does `reshard_after_forward` say?")
INNER = "inner units come first, and what is around them last; each has a `forward`"
AHEAD = "`set_modules_to_forward_prefetch` buys time with memory"
BLOCKS, ROOT = "    for block in model.blocks:\n        fully_shard(block)\n", "    fully_shard(model)\n"
PREFETCH = ("    for one, after in zip(model.blocks, model.blocks[1:]):\n"
            "        one.set_modules_to_forward_prefetch([after])\n")
COPY = "    import copy\n    model = copy.deepcopy(model)\n"


def gathered_ahead(mine, wanted, layers):
    if mine["gathers between first and last block"] < layers - 1:
        return "while a block computed, the next one had been gathered already: two at a time", "one"


class ShardIt(Table, InGroup):
    title = "Hunt: FSDP saves nothing"
    task = ("`model` is a `GPT` of `helpers.models`: embeddings, a list `model.blocks`, a norm and a head. "
            "Make it an FSDP2 model with `fully_shard`, in place, so that no more than **one** block is "
            "whole at a time while it computes forward, and the blocks are dropped again before backward. "
            "(What lies outside the blocks may stay whole.)")
    hints = (
        "Each call of `fully_shard` makes one unit of the parameters that are not yet in another one. What "
        "is in the one unit of this line?",
        "The inner ones first, then the whole: what a block's call has taken, the last call leaves alone.",
    )
    explanation = ("One unit for each block, and one for the rest. A unit is gathered before its module's "
                   "forward and dropped after it. The outermost stays whole until backward, unless told "
                   "otherwise.")
    why = ("the loss is right either way, and so is the memory between two steps: only the peak tells. With "
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

        warnings.simplefilter("ignore")  # of what FSDP says to models whose output is a view
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = GPT(32, layers, length=8, vocabulary=32)
        block, total = (sum(one.nbytes for one in part.parameters()) for part in (model.blocks[0], model))
        shard_it(model)
        not_sharded = [name for name, one in model.named_parameters() if not isinstance(one, DTensor)]
        if not_sharded:
            return {"parameters that are not sharded": not_sharded}
        own, gathers = sum(one.to_local().nbytes for one in model.parameters()), []
        for one in model.blocks:  # how many gathers there have been when a block begins, its own among them
            one.register_forward_pre_hook(lambda *_: gathers.append(
                sum("all_gather" in entry["profiling_name"] for entry in recorded())))
        with memory_by_kind(model, torch.optim.SGD(model.parameters(), lr=0.1)) as forward:
            loss = model(torch.arange(16).view(2, 8)).square().mean()
        loss.backward()

        def whole(gathered):
            return math.ceil((gathered - (total - layers * block)) / block - 0.1)

        return {
            "parameters that are not sharded": [],
            "share held between two steps": round(own / total, 1),
            "loss": loss.item(),
            "gradients": [one.grad.full_tensor().norm().item() for one in model.parameters()],
            "blocks whole at the same time": whole(max(one.gathered for one in forward)),
            "gathers between first and last block": gathers[-1] - gathers[0],
            "blocks whole after forward": whole(forward[-1].gathered)}

    rules = (
        nothing("parameters that are not sharded", WHOLE, "none: each is a DTensor"),
        between("share held between two steps", lambda wanted, case: (0, 0.7),
                "along which dimension of its mesh does `fully_shard` cut, and along which copy?"),
        same("loss", "what else was changed?", within=1e-4),
        same("gradients", "what else was changed?", within=1e-4),
        between("blocks whole at the same time", lambda wanted, case: (0, 1), UNITS),
        each(gathered_ahead, AHEAD),
        between("blocks whole after forward", lambda wanted, case: (-math.inf, 0), "`reshard_after_forward`"),
    )
    mistakes = (
        (BLOCKS, "", UNITS),
        ("fully_shard(block)", "fully_shard(block, reshard_after_forward=False)", UNITS),
        ("in model.blocks:", "in model.blocks[:2]:", UNITS),
        (ROOT, "", WHOLE),
        (BLOCKS, COPY + BLOCKS, WHOLE),
        (ROOT, ROOT + PREFETCH, AHEAD),
    )
    stops = (
        (BLOCKS, ROOT + BLOCKS, "Invariant encountered", INNER),
        (BLOCKS, "    fully_shard(model.blocks)\n", "do not implement forward", INNER),
    )


sharded_adamw, memory_per_rank, my_piece, shard_it = ShardedAdamw(), MemoryPerRank(), MyPiece(), ShardIt()
