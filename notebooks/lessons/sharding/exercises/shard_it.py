"""A hunt: FSDP around the whole model gathers the whole model; a unit for each block gathers a block."""

import math
import warnings

import torch

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, nothing, same
from helpers.instruments.collectives import recorder_entries
from helpers.instruments.memory import memory_by_kind
from helpers.models import GPT


class ShardIt(InGroup):
    title = "Hunt: FSDP saves nothing"
    task = ("`model` is a `GPT` of `helpers.models`: embeddings, a list `model.blocks`, a norm and a head. "
            "Make it an FSDP2 model with `fully_shard`, in place. While it computes forward, no more than "
            "**one** block may be whole, and each block is gathered in **one** collective. (What lies "
            "outside the blocks may stay whole.)")
    hints = (
        "Each call of `fully_shard` makes one unit of the parameters that are not yet in another unit. "
        "What is in the only unit of this line?",
        "Call it for the inner modules first, then for the whole: the last call takes what is left.",
    )
    explanation = ("One unit for each block, and one for the rest. A unit is gathered before its module's "
                   "forward and dropped after it. The outermost unit stays whole until backward, by default.")
    why = ("the loss is right either way, and so is the memory between two steps. Only the peak tells: with "
           "one unit around everything, FSDP gathers the whole model before the first layer computes.")

    cases = {"4 blocks": 4, "6 blocks": 6}
    timeout = 40
    patience = 10
    slow = True

    def answer(model):
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:              #: blocks
            fully_shard(block)                  #: block
        fully_shard(model)                      #: rest

    def observe(shard_it, layers):
        from torch.distributed.tensor import DTensor

        def size(module):
            return sum(parameter.nbytes for parameter in module.parameters())

        warnings.simplefilter("ignore")  # what FSDP says to models whose output is a view
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = GPT(32, layers, length=8, vocabulary=32)
        of_a_block = size(model.blocks[0])
        outside_the_blocks = size(model) - layers * of_a_block

        shard_it(model)

        not_sharded = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
        if not_sharded:
            return {"parameters that are not sharded": not_sharded}
        gathers = []  # how many there have been when a block begins, its own among them

        def count_gathers(*_):
            gathers.append(sum("all_gather" in entry["profiling_name"] for entry in recorder_entries()))

        for block in model.blocks:
            block.register_forward_pre_hook(count_gathers)
        with memory_by_kind(model, torch.optim.SGD(model.parameters(), lr=0.1)) as forward:
            loss = model(torch.arange(16).view(2, 8)).square().mean()
        loss.backward()
        most_gathered = max(moment.gathered for moment in forward)
        return {
            "parameters that are not sharded": [],
            "loss": loss.item(),
            "gradients": [parameter.grad.full_tensor().norm().item() for parameter in model.parameters()],
            "blocks whole at the same time": math.ceil((most_gathered - outside_the_blocks) / of_a_block - 0.1),
            "gathers between first and last block": gathers[-1] - gathers[0],
        }

    # ---------------------------------------------------------------------------------------- what must hold

    whole_model = "the last call is for the whole model, and for this one, not for a copy"
    what_is_a_unit = ("what does one call of `fully_shard` gather together, and when is it dropped again? The last "
                      "call gathers everything that had no call of its own. And what does `reshard_after_forward` say?")
    a_gather_a_block = ("each block needs one gather in forward: make a unit of each block, none inside it, prefetch "
                        "nothing")

    rules = (
        nothing("parameters that are not sharded", whole_model, "none: each is a DTensor"),
        same("loss", "what else was changed?", within=1e-4),
        same("gradients", "what else was changed?", within=1e-4),
        between("blocks whole at the same time", lambda wanted, case: (0, 1), what_is_a_unit),
        same("gathers between first and last block", a_gather_a_block),
    )

    # ------------------------------------------------------------------------------------ what people write

    inner_first = "call `fully_shard` for inner modules first, and for what is around them last. Each has a `forward`"

    mistakes = (
        mistake(what_is_a_unit, blocks=""),
        mistake(what_is_a_unit, block="fully_shard(block, reshard_after_forward=False)"),
        mistake(a_gather_a_block,
                block="for inner in (block.qkv, block.up):\n"
                      "    fully_shard(inner)\n"
                      "fully_shard(block)"),
        mistake(whole_model, rest=""),
        stop("Invariant encountered", inner_first,
             blocks="fully_shard(model)\n"
                    "for block in model.blocks:\n"
                    "    fully_shard(block)"),
        stop("do not implement forward", inner_first, blocks="fully_shard(model.blocks)"),
    )


shard_it = ShardIt()
