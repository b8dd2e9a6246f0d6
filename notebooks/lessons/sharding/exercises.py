"""The exercises of sharding: an optimizer in shards, its bytes predicted, a checkpoint cut anew, FSDP in units."""

import copy
import gc
import sys
import time
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.optim.optimizer import register_optimizer_step_post_hook

from helpers.exercises.alone import Alone
from helpers.exercises.engine import not_yet, scratch
from helpers.exercises.group import InGroup
from helpers.instruments.collectives import recorded
from helpers.instruments.memory import held_bytes, memory_by_kind
from helpers.models import GPT


def allowed(plain):
    """The bytes that a rank may keep of a state of so many; the step counters are small, and everybody's own."""
    return 0.5 * plain + 1024


class ShardedAdamw(InGroup):
    title = "An AdamW that holds its share"
    task = ("Every rank holds the whole `model`. `steps` is an iterator: each time that it gives you its next item, "
            "the parameters have new gradients, averaged already, and equal in all ranks. After each, do what "
            "`torch.optim.AdamW(model.parameters(), lr=lr).step()` would do, so that all ranks have the new weights "
            "before you ask for the next item. At the end return the optimizer, or whatever holds its state. Beside "
            "the parameters and their gradients keep no more than **half** of the bytes that a plain AdamW keeps. "
            "(There are four ranks: a fair share is a quarter.)")
    hints = (
        "Who steps what? Give each parameter to one rank, or cut all of them into pieces, as ZeRO-1 does.",
        "An AdamW of this rank's own parameters steps them. Then everybody needs everybody's: `dist.broadcast` each "
        "parameter from its owner, with `src=` the owner's rank. All ranks must broadcast in the same order.",
        "`torch.distributed.optim.ZeroRedundancyOptimizer` is torch's own. By hand it takes about ten lines.",
    )
    explanation = ("Each parameter goes to the rank that has least so far. The optimizer knows only its own, so its "
                   "state is that of about a quarter. A broadcast from the owner makes the weights equal again.")
    why = ("the weights are those of a plain AdamW, bit for bit: only the bytes tell whether an optimizer is sharded. "
           "Whole parameters are simple, and uneven; ZeRO cuts one flat tensor, so that all hold equally much.")
    world_sizes = (4,)
    cases = {"float32": "float32", "float64": "float64"}

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

    def probe(sharded_adamw, dtype):
        torch.manual_seed(0)
        # 18 tensors, 4,825 numbers: nothing that four ranks could share out evenly.
        model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(8)), nn.Linear(24, 1)).to(getattr(torch, dtype))
        plain, parameters, differ = copy.deepcopy(model), list(model.parameters()), []
        # A bias has gradients so small that AdamW's eps counts: made larger or smaller, they are seen in the weights.
        gradients = [[torch.randn_like(one) * (1 if one.dim() > 1 else 1e-5) for one in parameters] for _ in range(3)]
        originals = [one.untyped_storage() for one in parameters]  # kept: no new one can have the address of an old one
        reference = torch.optim.AdamW(plain.parameters(), lr=0.01)
        after = [parameters_to_vector(plain.parameters()).detach()]  # and before the first step
        for given in gradients:
            for one, gradient in zip(plain.parameters(), given, strict=True):
                one.grad = gradient.clone()
            reference.step()
            after.append(parameters_to_vector(plain.parameters()).detach())

        states, most = {}, []  # of all optimizers: {place: bytes} after a step's `step()`; the sums, by step

        def look(optimizer, *_):
            states.update((value.data_ptr(), value.nbytes) for state in optimizer.state.values()
                          for value in state.values() if getattr(value, "ndim", 0))

        def steps():
            for given, (was, should) in zip(gradients, pairwise(after), strict=True):
                for one, gradient in zip(parameters, given, strict=True):
                    one.grad = gradient  # made before the count begins
                yield
                most.append(sum(states.values()))
                states.clear()
                is_now = parameters_to_vector(one.detach().contiguous() for one in parameters)
                off, moved = (is_now - should).abs(), is_now != was
                still = (~moved).sum().item() if (off * moved).max() < 1e-5 else 0  # beside numbers that are right
                differ.append((off.max().item(), still, ((is_now - was).norm() / (should - was).norm()).item()))

        with register_optimizer_step_post_hook(look), held_bytes() as held:
            kept = sharded_adamw(model, steps(), 0.01)
        gc.collect()
        now = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in parameters}
        for original in originals:
            now.pop(original._cdata, None)
        beside, both = sum(now.values()), 2 * sum(one.nbytes for one in parameters)
        end = time.monotonic() + 2  # a thread of gloo's lets go of tensors a moment after their collective is over
        while held.now - beside > allowed(both) and time.monotonic() < end:
            time.sleep(0.01)
        return {"differ": differ, "kept": held.now - beside, "most": max(most, default=0),
                "type": type(kept).__name__, "plain": both}

    def judge(self, seen, case):
        for rank, one in enumerate(seen):
            if len(one["differ"]) < 3:
                return not_yet(f"rank {rank} returned after {len(one['differ'])} of 3 steps",
                               "a step for each item of `steps`", "`for _ in steps:` goes on until there are no more")
            for step, (off, still, moved) in enumerate(one["differ"]):
                if off < 1e-5:
                    continue
                what = f"rank {rank}'s weights are up to {off:.2g} away from a plain AdamW's"
                if still:
                    what = f"{still:,} of rank {rank}'s 4,825 weights have not moved"
                    look = ("each number, to the last one, has an owner, who steps it and hands it to the others "
                            "before the next item is asked for")
                elif step:
                    look = "step 0 is right: is the optimizer's state kept for the next one?"
                elif abs(moved - 1) > 0.02:
                    what = f"rank {rank}'s weights moved {moved:.2g} times as far as those of a plain AdamW"
                    look = "the rate is `lr`, the optimizer is AdamW; and an owner's values are handed out as they are"
                else:  # or nan
                    look = ("AdamW's own step: its weight decay and its eps, on the gradients as they are, averaged "
                            "already; and its state in the parameters' dtype")
                return not_yet(f"after step {step}, {what}", "the same weights in every rank, after each step", look)
        together, plain = sum(one["kept"] for one in seen), seen[0]["plain"]
        if together < 0.9 * plain:
            return not_yet(f"the weights are right, but what the ranks returned (rank 0: {seen[0]['type']}) holds "
                           f"{together:,} bytes together", f"{plain:,}: all of the state is somewhere",
                           "`return` the optimizer, or whatever holds the state: its bytes are counted")
        for rank, one in enumerate(seen):
            if (kept := max(one["kept"], one["most"])) > allowed(one["plain"]):
                return not_yet(f"the weights are right, but rank {rank} keeps {kept:,} bytes beside parameters "
                               f"and gradients; a plain AdamW keeps {one['plain']:,}", "at most half of that",
                               "which parameters does this rank's optimizer know? Is there a second copy of them?")
        return None


class MemoryPerRank(Alone):
    title = "Predict: the states of one rank"
    task = ("A model has so many `parameters`, in float32, and is trained with AdamW by `ranks` ranks. `stage` is 0 "
            "for DDP, or ZeRO's 1, 2 or 3. Return the bytes that one rank holds for parameters, gradients and the "
            "optimizer's state, in a dict with the keys `\"parameters\"`, `\"gradients\"` and `\"optimizer\"`. What is"
            " shared out is cut into equal pieces, of whole parameters, padded if need be.")
    hints = ("Stage 1 shares out the optimizer's state, stage 2 the gradients as well, stage 3 all three.",
             "A piece has `ceil(parameters / ranks)` parameters: `-(-parameters // ranks)` in whole numbers.")
    explanation = ("The later the stage, the more is cut; each number has 4 bytes, and AdamW keeps two for each "
                   "parameter.")
    why = ("this is the first thing to compute before you rent GPUs: 175 billion parameters are 2,800 GB of states, "
           "and no GPU has that; 64 of them hold 44 GB each. Activations come on top, and are not shared out.")
    cases = {f"{parameters:,} parameters, {ranks} ranks, stage {stage}": (parameters, ranks, stage)
             for parameters, ranks in ((1000, 4), (1001, 4), (7, 8)) for stage in range(4)}

    def answer(parameters, ranks, stage):
        piece = -(-parameters // ranks)
        return {"parameters": 4 * (piece if stage >= 3 else parameters),
                "gradients": 4 * (piece if stage >= 2 else parameters),
                "optimizer": 8 * (piece if stage >= 1 else parameters)}

    def probe(memory_per_rank, case):
        got, wanted = memory_per_rank(*case), MemoryPerRank.answer(*case)
        got = {key: float(value) for key, value in got.items()} if isinstance(got, dict) else repr(got)
        if not isinstance(got, dict) or set(got) != set(wanted):
            return not_yet(f"it returned {got}", "a dict with these keys: `parameters`, `gradients`, `optimizer`", "")
        for kind, right in wanted.items():
            if got[kind] != right:
                piece = -(-case[0] // case[1])
                look = ("stage 0 cuts nothing: 4 bytes for a number, and AdamW keeps two for each parameter"
                        if case[2] == 0 else
                        "as many pieces as ranks, of whole parameters, the last one padded, and equal: round up"
                        if abs(got[kind] - right) < 8 * case[1] else
                        f"is this kind cut at stage {case[2]}? A piece has {piece:,} parameters, of 4 bytes for each "
                        "number")
                return not_yet(f"{kind}: {got[kind]:,.7g} bytes", f"{right:,}", look)
        return None


class MyPiece(InGroup):
    title = "Saved on four, resumed on N"
    task = ("Four ranks have saved a flat tensor of `total` numbers: it was padded with zeros to a multiple of four, "
            "and rank *i* wrote its quarter to `files[i]` with `torch.save`. Now there are N ranks. Return this rank's"
            " piece of the same tensor for N ranks: padded with zeros to a multiple of **N**, cut into N equal pieces,"
            " the piece with this rank's number. Load only files that hold some of its `total` numbers: the whole may "
            "not fit.")
    hints = (
        "This rank's piece begins at `rank * size` and ends at `(rank + 1) * size`, with `size = -(-total // N)`; but "
        "the tensor ends at `total`, and zeros follow.",
        "File *i* holds the numbers from `i * saved` to `(i + 1) * saved`, with `saved = -(-total // 4)`. Which of "
        "them overlap with yours? A file that holds nothing but padding is not needed either.",
    )
    explanation = ("For each file, the part of it that lies in this rank's piece, and before `total`, is copied to "
                   "where it belongs. Files without such a part are not opened.")
    why = ("this is what a distributed checkpoint does for every tensor of a model, and why its `.metadata` says which"
           " file holds which part. Whoever first puts the whole together needs a machine that holds the whole.")
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

    def probe(my_piece, case):
        total, dtype = case
        flat = torch.zeros(-(-total // 4) * 4, dtype=getattr(torch, dtype))
        flat[:total] = torch.arange(1, total + 1)
        with scratch() as folder:
            files = [str(Path(folder, f"rank{rank}.pt")) for rank in range(4)]
            for file, piece in zip(files, flat.chunk(4), strict=True):
                torch.save(piece.clone(), file)
            opened = set()
            sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0])))  # it stays
            returned = my_piece(files, total)
        loaded = [index for index, file in enumerate(files) if file in opened]
        rank, size, saved = dist.get_rank(), -(-total // dist.get_world_size()), -(-total // 4)
        numbers = range(rank * size, (rank + 1) * size)
        wanted = [float(number + 1) if number < total else 0.0 for number in numbers]
        piece = returned.tolist() if isinstance(returned, torch.Tensor) else repr(returned)
        if piece != wanted:
            return not_yet(f"rank {rank} returned {piece}", f"a tensor of {wanted}",
                           "where does this rank's piece begin and end, and where does the tensor end? (The "
                           f"numbers are 1 to {total}. How long is a file?)")
        if any(wanted) and returned.dtype != flat.dtype:
            return not_yet(f"rank {rank}'s piece is {str(returned.dtype)[6:]}", dtype,
                           "make the piece in the dtype of what is loaded")
        needed = sorted({number // saved for number in numbers if number < total})
        if set(loaded) - set(needed):
            return not_yet(f"the piece is right, but rank {rank} loaded the files {loaded}", f"only {needed}",
                           "which files hold numbers of this rank's piece? Zeros of the padding can be made")
        return None


class ShardIt(InGroup):
    title = "Hunt: FSDP saves nothing"
    task = ("`model` is a `GPT` of `helpers.models`: embeddings, a list `model.blocks`, a norm and a head. Make it an "
            "FSDP2 model with `fully_shard`, in place, so that no more than **one** block is whole at a time while it "
            "computes forward, and the blocks are dropped again before backward. (What lies outside the blocks may "
            "stay whole.)")
    hints = ("Each call of `fully_shard` makes one unit of the parameters that are not yet in another one. What is in "
             "the one unit of this line?",
             "The inner ones first, then the whole: what a block's call has taken, the last call leaves alone.")
    explanation = ("One unit for each block, and one for the rest. A unit is gathered before its module's forward and "
                   "dropped after it. The outermost stays whole until backward, unless told otherwise.")
    why = ("the loss is right either way, and so is the memory between two steps: only the peak tells. With one unit "
           "around everything, FSDP gathers the whole model before the first layer computes.")
    timeout = 40
    patience = 10
    cases = {"4 blocks": 4, "6 blocks": 6}

    def answer(model):
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)

    def probe(shard_it, layers):
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.tensor import DTensor

        warnings.simplefilter("ignore")  # of what FSDP says to models whose output is a view
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = GPT(32, layers, length=8, vocabulary=32)
        plain, rank = copy.deepcopy(model), dist.get_rank()
        block = sum(one.nbytes for one in plain.blocks[0].parameters())
        total = sum(one.nbytes for one in plain.parameters())
        tokens = torch.arange(16).view(2, 8)
        wanted = plain(tokens).square().mean()
        wanted.backward()
        shard_it(model)
        if not all(isinstance(one, DTensor) for one in model.parameters()):
            return not_yet(f"some of rank {rank}'s parameters in `model` are not sharded", "every one is a DTensor",
                           "the last call is for the whole model, and for this one: no copy, no wrapper, no "
                           "`ignored_params` and no `unshard()`")
        own = sum(one.to_local().nbytes for one in model.parameters()) / total
        gathers = []  # how many there have been when a block begins, its own among them
        for one in model.blocks:
            one.register_forward_pre_hook(lambda *_: gathers.append(
                sum("all_gather" in entry["profiling_name"] for entry in recorded())))
        with memory_by_kind(model, torch.optim.SGD(model.parameters(), lr=0.1)) as forward:
            loss = model(tokens).square().mean()
        loss.backward()
        same = all(torch.allclose(one.grad.full_tensor(), other.grad, atol=1e-6)
                   for one, other in zip(model.parameters(), plain.parameters(), strict=True))
        peak, between = ((held - (total - layers * block)) / block
                         for held in (max(moment.gathered for moment in forward), forward[-1].gathered))
        units = sum(isinstance(one, FSDPModule) for one in model.blocks)
        if own > 0.7:
            return not_yet(f"between two steps rank {rank} holds {own:.0%} of the parameters", "half of them",
                           "along which dimension of its mesh does `fully_shard` cut, and along which copy?")
        if not same or not torch.allclose(loss, wanted):
            return not_yet("the loss or the gradients are not those of the plain model", "the same numbers",
                           "what else was changed?")
        if peak > 1.1:
            return not_yet(f"in forward up to {peak:.0f} blocks were whole at the same time; {units} of {layers} were "
                           "given to a `fully_shard` before the model's", "one",
                           "what does one call of `fully_shard` gather together, and when is it dropped again? The "
                           "last one gathers all that has had no call of its own")
        if units == layers > gathers[-1] - gathers[0] + 1:
            return not_yet("while a block computed, the next one had been gathered already: two at a time", "one",
                           "`set_modules_to_forward_prefetch` buys time with memory")
        if between > 0.1:
            return not_yet(f"after forward {between:.0f} blocks were still whole", "none", "`reshard_after_forward`")
        return None

    def _of_error(self, error, answer):
        if any("fully_sharded_data_parallel.py" in one.traceback for one in error.failures):
            return not_yet("`FullyShardedDataParallel` is the older FSDP, a wrapper that wants a GPU",
                           "`fully_shard`, which changes `model` itself", "the import")
        feedback = super()._of_error(error, answer)
        if "fully_shard(" not in feedback.where_to_look:
            return feedback
        return replace(feedback, expected="inner units come first, and what is around them last; each has a `forward`")


sharded_adamw, memory_per_rank, my_piece, shard_it = ShardedAdamw(), MemoryPerRank(), MyPiece(), ShardIt()
