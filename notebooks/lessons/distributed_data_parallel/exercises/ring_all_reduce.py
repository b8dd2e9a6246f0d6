"""All-reduce, by hand: the sum over all ranks, sent around a ring in chunks."""

import math

import torch
import torch.distributed as dist

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, holds, nothing, same


class RingAllReduce(InGroup):
    title = "All-reduce, by hand, in a ring"
    task = ("`tensor` has one dimension, and at least as many elements as there are ranks. Leave in every "
            "rank's `tensor` the **sum over all ranks**, in place, as `dist.all_reduce` does. Use only "
            "`send`, `recv`, `isend`, `irecv` or `batch_isend_irecv` of `torch.distributed`. No rank may "
            "send more than 2(N − 1) chunks, where a chunk is an N-th of the tensor, rounded up.")
    hints = (
        "`tensor.tensor_split(N)` gives N views, also where N does not divide the length. Every rank sends "
        "to `rank + 1` and receives from `rank - 1`, modulo N.",
        "First half, N − 1 steps: send a chunk on, add the one that you receive to yours. In step `s` rank "
        "`r` sends chunk `r - s` and receives chunk `r - s - 1`. Then each rank holds one finished chunk.",
        "Second half, N − 1 steps: send the finished chunk on, overwrite yours with the one that you "
        "receive. If all ranks `send` first, no rank receives: use `batch_isend_irecv`, then `wait()`.",
    )
    explanation = ("The chunks are views, so that adding to them changes `tensor`. The index runs on through "
                   "both halves: in step N − 1 a rank sends the chunk that it has just finished. "
                   "`batch_isend_irecv` starts both at once, so that no rank waits for another to receive.")
    why = ("each rank sends 2(N − 1)/N of the tensor, which is less than twice its size for any number of "
           "ranks. If every rank sent its tensor to all others, it would send N − 1 times the size.")

    world_sizes = (2, 3, 4)
    cases = {"12 elements": (12, "float64"), "5 elements": (5, "float32")}  # divided by all, and by none

    def answer(tensor):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = tensor.tensor_split(n)                                                     #: cut
        for step in range(2 * (n - 1)):                                                     #: steps
            give, take = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
            received = torch.empty_like(take)
            exchange = [dist.P2POp(dist.isend, give, (rank + 1) % n),                       #: exchange
                        dist.P2POp(dist.irecv, received, (rank - 1) % n)]
            for work in dist.batch_isend_irecv(exchange):                                   #: wait
                work.wait()
            if step < n - 1:                                                                #: half
                take += received                                                            #: add
            else:
                take.copy_(received)                                                        #: overwrite

    def observe(ring_all_reduce, case):
        size, dtype = case
        n = dist.get_world_size()
        memory = torch.arange(1, size + 1, dtype=getattr(torch, dtype)) * 10 ** dist.get_rank()
        before = memory.tolist()
        ring_all_reduce(memory[:])  # who only exchanges the tensor's memory has not written into it
        traffic = ring_all_reduce.traffic
        return {
            "before": before,
            "tensor": memory.tolist(),
            "elements sent": sum(traffic.sent) / memory.element_size(),
            "the most to send": 2 * (n - 1) * -(-size // n),
            "collectives called": [call.name for call in traffic.collectives if call.name != "barrier"],
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "who sends while you receive, and who receives while you send?"
    sizes = "the tensor that you receive into: is it as long as the chunk that is sent, and of its dtype?"
    in_place = "`tensor += …` and `tensor.copy_(…)` write into it; `tensor = tensor + …` makes another one"
    only_chunks = "send chunks, not the tensor, in its own dtype; and add up on the way"

    def unchanged(mine, wanted, case):
        if all(rank["tensor"] == rank["before"] for rank in mine):
            return "`tensor` holds what it held before, in every rank", "the sums are in it"

    rules = (
        nothing("collectives called", "the collective is what you are to build", "only `send`, `recv` …"),
        holds(unchanged, in_place),
        same("tensor", "which chunk goes out in which step? N − 1 steps add, N − 1 overwrite, and the first of these "
                       "sends the chunk that is finished", within=1e-6),
        between("elements sent", lambda wanted, case: (case[0], math.inf),
                "the sums are right, but did all go through `send`? A store, a file or another dtype is another way"),
        between("elements sent", lambda wanted, case: (0, wanted["the most to send"]), only_chunks),
    )

    # ------------------------------------------------------------------------------------ what people write

    how_many = "how many steps are there? N − 1 that add, N − 1 that overwrite: try it with three ranks on paper"
    at_once = "`isend` and `irecv` return at once: wait for them afterwards"

    def everything_to_everybody(tensor):
        import torch
        import torch.distributed as dist

        others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
        sends = [dist.isend(tensor, other) for other in others]
        parts = [torch.empty_like(tensor) for _ in others]
        for other, part in zip(others, parts, strict=True):
            dist.recv(part, other)
        for sending in sends:
            sending.wait()
        tensor.copy_(sum([tensor, *parts]))

    def nothing_was_sent(lost):
        return all(rank.sent == 0 for rank in lost)

    def as_many_were_sent_as_asked_for(lost):
        return all(rank.sent == rank.asked_for for rank in lost)

    mistakes = (
        mistake("in the second half what comes in is finished: keep it", overwrite="take += received"),
        mistake("in the first half, what comes in is added to yours", add="take.copy_(received)"),
        mistake(in_place, add="take = take + received"),
        mistake(in_place, cut="chunks = list(tensor.tensor_split(n))",
                add="chunks[(rank - step - 1) % n] = take + received"),
        mistake("how many steps add? Only N − 1 of them", half="if step < n:"),
        mistake(how_many, steps="for step in range(2 * (n - 2)):"),
        mistake(how_many, steps="for step in range(2):"),
        mistake("the chunks belong to a copy of `tensor`", cut="chunks = tensor.clone().tensor_split(n)"),
        mistake("is it in any chunk? N need not divide the length", cut="chunks = tensor.split(len(tensor) // n)"),
        mistake("the task asks for the sum, not for the mean", cut="tensor /= n\nchunks = tensor.tensor_split(n)"),
        mistake(only_chunks, everything_to_everybody),
        stop("every rank waited in vain at `dist.send(", f"nobody receives. {at_once}",
             exchange="dist.send(give, (rank + 1) % n)", wait="dist.recv(received, (rank - 1) % n)"),
        stop(nothing_was_sent, f"nobody sends. {at_once}",
             exchange="dist.recv(received, (rank - 1) % n)", wait="dist.send(give, (rank + 1) % n)"),
        stop(as_many_were_sent_as_asked_for,
             "to which rank do you send, and from which do you receive? Rank 1 receives what rank 0 sends",
             exchange="exchange = [dist.P2POp(dist.isend, give, (rank + 1) % n),\n"
                      "            dist.P2POp(dist.irecv, received, (rank + 1) % n)]"),
        stop("never waited for it", at_once, wait="dist.batch_isend_irecv(exchange)"),
    )


ring_all_reduce = RingAllReduce()
