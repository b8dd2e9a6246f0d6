"""A hunt: units for the blocks alone leave the largest layers in the last unit, which stays whole."""

import warnings

import torch

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, nothing, same
from helpers.instruments.collectives import recorder_entries
from helpers.models import GPT


class ShardIt(InGroup):
    title = "Hunt: FSDP saves too little"
    task = ("`model` is a `GPT` of `helpers.models` with a large vocabulary: `model.tokens` and `model.head` are its "
            "largest layers. Make it an FSDP2 model with `fully_shard`, in place. While it computes forward, no more "
            "than **one** of these may be whole at a time: a block, `model.tokens`, `model.head`. Each of them is "
            "gathered in **one** collective. (`model.positions` and `model.norm` are small. They are sharded, "
            "too, but may stay whole after a gather.)")
    hints = (
        "Each call of `fully_shard` makes one unit of the parameters that are not yet in another unit. "
        "Which are in the last unit of these lines, and how long is it whole?",
        "The inner modules come first, then the whole: the last call takes what is left. Leave it only what is small.",
    )
    explanation = ("One unit for each large layer, and one for the small rest. A unit is gathered before its module's "
                   "forward and dropped after it. The outermost unit stays whole until backward, by default.")
    why = ("the loss is right either way, and so is the memory between two steps. Only the peak tells. Of Llama 3 8B's "
           "parameters 1.05 billion are the embedding and the head: its vocabulary has 128,256 tokens of width 4,096.")

    cases = {"4 blocks": 4, "6 blocks": 6}
    timeout = 40
    patience = 10
    slow = True

    def answer(model):
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:              #: blocks
            fully_shard(block)                  #: block
        fully_shard(model.tokens)               #: tokens
        fully_shard(model.head)                 #: head
        fully_shard(model)                      #: rest

    def observe(shard_it, layers):
        from torch.distributed.tensor import DTensor

        def has_whole_parameters(module):
            return any(not isinstance(parameter, DTensor) for parameter in module.parameters())

        warnings.simplefilter("ignore")  # what FSDP says to models whose output is a view
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = GPT(32, layers, length=8, vocabulary=1000)
        shard_it(model)

        not_sharded = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
        if not_sharded:
            return {"parameters that are not sharded": not_sharded}
        large = [model.tokens, *model.blocks, model.head]
        whole = []  # how many of the large layers have whole parameters when one of them computes
        gathers = []  # how many there have been by then, its own among them

        def look(*_):
            whole.append(sum(has_whole_parameters(layer) for layer in large))
            gathers.append(sum("all_gather" in entry["profiling_name"] for entry in recorder_entries()))

        for layer in large:
            layer.register_forward_pre_hook(look)
        loss = model(torch.arange(16).view(2, 8)).square().mean()
        _, first_block, *_, last_block, _ = gathers
        loss.backward()
        return {
            "parameters that are not sharded": [],
            "loss": loss.item(),
            "gradients": [parameter.grad.full_tensor().norm().item() for parameter in model.parameters()],
            "large layers with whole parameters at the same time": max(whole),
            "gathers between first and last block": last_block - first_block,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    whole_model = "the last call is for the whole model, with all of its parameters, and for this one, not for a copy"
    what_is_a_unit = ("what does one call of `fully_shard` gather together, and when is it dropped again? The last "
                      "call gathers everything that had no call of its own, and an outermost unit stays whole. And "
                      "what does `reshard_after_forward` say?")
    a_gather_a_block = ("each block needs one gather in forward: make a unit of each block, none inside it, prefetch "
                        "nothing")

    rules = (
        nothing("parameters that are not sharded", whole_model, "none: each is a DTensor"),
        same("loss", "what else was changed?", within=1e-4),
        same("gradients", "what else was changed?", within=1e-4),
        between("large layers with whole parameters at the same time", lambda wanted, case: (0, 1), what_is_a_unit),
        same("gathers between first and last block", a_gather_a_block),
    )

    # ------------------------------------------------------------------------------------ what people write

    inner_first = "call `fully_shard` for inner modules first, and for what is around them last. Each has a `forward`"

    mistakes = (
        mistake(what_is_a_unit, tokens="", head=""),
        mistake(what_is_a_unit, head=""),
        mistake(what_is_a_unit, tokens="fully_shard([model.tokens, model.head])", head=""),
        mistake(what_is_a_unit, blocks=""),
        mistake(what_is_a_unit, block="fully_shard(block, reshard_after_forward=False)"),
        mistake(a_gather_a_block,
                block="for inner in (block.qkv, block.up):\n"
                      "    fully_shard(inner)\n"
                      "fully_shard(block)"),
        mistake(whole_model, rest=""),
        mistake(what_is_a_unit, rest="fully_shard(model.positions)\nfully_shard(model.norm)"),
        stop("Invariant encountered", inner_first,
             blocks="fully_shard(model)\n"
                    "for block in model.blocks:\n"
                    "    fully_shard(block)"),
        stop("do not implement forward", inner_first, blocks="fully_shard(model.blocks)"),
    )


shard_it = ShardIt()
