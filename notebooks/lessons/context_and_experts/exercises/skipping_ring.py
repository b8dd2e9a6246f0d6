"""A hunt: a rank that has no use for a block does not pass it on."""

import torch
import torch.distributed as dist

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, nothing, same
from lessons.context_and_experts.cuts import CUTS


class SkippingRing(InGroup):
    title = "Hunt: the rank that saves work"
    task = ("Each rank has its block of keys `k` and values `v`; `where[rank]` holds the positions of a "
            "rank's tokens. `pass_on(k, v)` gives a block to the next rank, and returns the one of the "
            "previous rank. Call `compute(k, v, block)` once for every block that some query of this rank "
            "may look at, with the number of the block's owner, and **not** for blocks that are masked as a "
            "whole. Blocks travel by `pass_on` only, at most N − 1 times.")
    hints = ("Which lines does `continue` skip?",)
    explanation = "The block goes on whether or not this rank has a use for it."
    why = ("whether a rank *computes* may depend on its data. Whether it *communicates* must not, because "
           "the others count on it.")

    world_sizes = (2, 4)
    cases = {name: name for name in CUTS}

    def answer(k, v, where, pass_on, compute):
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        for step in range(n):
            block = (rank - step) % n                                   #: block
            if where[rank].max() >= where[block].min():                 #: of_use
                compute(k, v, block)
            if step < n - 1:                                            #: not_last
                k, v = pass_on(k, v)

    def observe(skipping_ring, cut):
        rank, n = dist.get_rank(), dist.get_world_size()
        computed = []
        passed_on = []

        def pass_on(*tensors):
            arriving = [torch.empty_like(tensor) for tensor in tensors]
            exchange = [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in tensors]
            exchange += [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in arriving]
            for work in dist.batch_isend_irecv(exchange):
                work.wait()
            passed_on.append(len(tensors))
            return arriving

        def compute(k, v, block):
            computed.append([int(block), k.item(), v.item()])

        # One number each, which says whose block it is.
        k = torch.tensor(float(rank))
        v = torch.tensor(10.0 + rank)
        skipping_ring(k, v, CUTS[cut](8 * n, n), pass_on, compute)
        traffic = skipping_ring.traffic
        others = [call.name for call in traffic.collectives if call.name != "barrier"]
        others += ["send"] * (len(traffic.sent) - sum(passed_on))
        return {
            "owner, k and v of each computed block": sorted(computed),
            "passed on": len(passed_on),
            "sent without `pass_on`": others,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "who needs the block that this rank has no use for?"

    rules = (
        same("owner, k and v of each computed block",
             "whose block has arrived after how many steps? Who looks at it?"),
        between("passed on", lambda wanted, case: (0, wanted["passed on"]),
                "after N − 1 times every rank has seen every block"),
        nothing("sent without `pass_on`", "a ring holds one foreign block at a time: `pass_on` is all that it needs"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("the saving is gone: masked blocks are computed", of_use="if True:"),
        mistake("a block is masked as a whole if even the *latest* query is too early",
                of_use="if where[rank].min() >= where[block].min():"),
        mistake("blocks come from the previous rank: whose is it after one step?", block="block = (rank + step) % n"),
        mistake("what does the last step pass on, and who uses it?", not_last="if True:"),
        stop("rank 0 had returned", waiting,
             of_use="if where[rank].max() >= where[block].min():\n"
                    "    compute(k, v, block)\n"
                    "else:\n"
                    "    continue"),
    )


skipping_ring = SkippingRing()
