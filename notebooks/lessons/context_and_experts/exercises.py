"""The exercises of context and experts: a fair cut, merged blocks, a ring repaired, tokens that travel."""

from collections import Counter

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, each, holds, same
from lessons.context_and_experts.cuts import CUTS, pairs

ZIGZAG = "torch.cat([pieces[rank], pieces[-1 - rank]])"
FAIR = "a late token looks at many others, an early one at few: what must a rank with late tokens also have?"
TRUE = "where does each token of this rank stand in the whole sequence?"


def not_once(mine, wanted, case):
    times = Counter(token for tokens in mine["tokens"] for token in tokens)
    for token in range(case[0]):
        if times[token] != 1:
            return f"token {token} is in {times[token]} ranks", "each token is in one rank"


def other_positions(mine, wanted, case):
    for rank, (tokens, positions) in enumerate(zip(mine["tokens"], mine["positions"], strict=True)):
        if tokens != positions:
            return f"rank {rank} has the tokens {tokens}, and says {positions}", "the positions of its tokens"


def unequal(name):
    def broken(mine, wanted, case):
        if len(set(mine[name])) > 1:
            return f"{name}: {mine[name]}", "equally many"

    return broken


class FairCut(Table, Alone):
    title = "A fair cut, with its positions"
    task = ("`tokens` is a tensor whose first dimension is the sequence. Its length is a multiple of 2n. "
            "Return for rank `rank` of `n` ranks a pair `(mine, positions)`: the rank's tokens, and a tensor "
            "that says where each of them stands in the sequence. Each token belongs to one rank. All ranks "
            "have equally many tokens, and compute **equally many pairs**: a token looks at itself and at "
            "all before it.")
    hints = ("Cut the positions, not the tokens: `torch.arange(len(tokens))`. `tokens[positions]` follows.",
             "Cut into 2n pieces. A rank that has the first piece should also have the last one.")
    explanation = ("Rank r has the pieces r and 2n − 1 − r. What the early piece spares it, the late one "
                   "costs.")
    why = ("with a contiguous cut the last rank computes almost twice the mean, and in each step all others "
           "wait for it. The mask and the rotary angles need the true positions, and no error tells you if "
           "you count from 0 in each rank.")
    cases = {f"{length} tokens, {n} ranks": (length, n) for length, n in ((8, 2), (24, 3), (16, 1), (64, 4))}

    def answer(tokens, rank, n):
        import torch

        pieces = torch.arange(len(tokens)).chunk(2 * n)
        positions = torch.cat([pieces[rank], pieces[-1 - rank]])
        return tokens[positions], positions

    def observe(fair_cut, case):
        length, n = case
        tokens = torch.stack([torch.arange(length), -torch.arange(length)], 1)
        mine, positions = zip(*(fair_cut(tokens, rank, n) for rank in range(n)), strict=True)
        found = [one[:, 0] for one in mine]
        return {"tokens": [one.tolist() for one in found],
                "positions": [torch.as_tensor(one).tolist() for one in positions],
                "tokens by rank": list(map(len, found)),
                "pairs by rank": [pairs(one, torch.arange(length)) for one in found]}

    rules = (each(not_once, "which ranks have which tokens?"),
             each(unequal("tokens by rank"), "all ranks have equally many tokens"),
             each(other_positions, TRUE), each(unequal("pairs by rank"), FAIR))
    mistakes = (
        (ZIGZAG, "torch.arange(len(tokens)).chunk(n)[rank]", FAIR),
        (ZIGZAG, "torch.arange(rank, len(tokens), n)",
         "almost: each token of rank 1 looks at one more than its neighbour in rank 0"),
        (ZIGZAG, "torch.cat([pieces[rank], pieces[rank + n]])",
         "which pieces go together? The first, and the last"),
        ("tokens[positions], positions", "tokens[positions], torch.arange(len(positions))",
         "these are the positions within the rank"),
        ("tokens[positions], positions", "tokens[positions], positions[0] + torch.arange(len(positions))",
         "a rank's tokens are two pieces: after the first there is a gap"),
        ("pieces[-1 - rank]", "pieces[-rank]", "the last piece is `pieces[-1]`: whose is it?"))


WEIGHT = "(logsum1 - logsum).exp(), (logsum2 - logsum).exp()"
SHARE = "how much does each block count? Its share of the sum of all exp(score)"


class MergeBlocks(Table, Alone):
    title = "Two blocks, one attention"
    task = ("The same queries have looked at two blocks of keys, one after the other. Of each block you get "
            "`out`, [queries, width], its attention as if there were no other keys, and `logsum`, [queries], "
            "the logarithm of the sum of all exp(score). Return `(out, logsum)` of both blocks **together**. "
            "Scores may be large, such as 1,000. If a query may not look at a block, its `logsum` is −inf "
            "and its `out` is 0 for that block. Every query may look at one of the two.")
    hints = ("`out` is a sum of values, each times exp(score), over `logsum.exp()`. Write the sum over both "
             "blocks.",
             "Each `out` counts by `(logsum_of_the_block − logsum_of_both).exp()`. `torch.logaddexp` knows "
             "−inf.")
    explanation = ("`logaddexp` takes the larger one out first, so nothing overflows. The two weights add up "
                   "to 1.")
    why = ("FlashAttention and its relatives return exactly this pair. With it, ring attention is a kernel "
           "for each block and this merge.")
    cases = {"small scores": (1.0, None), "scores near 1,000": (1000.0, None),
             "the first block is masked": (1.0, 0), "the second block is masked": (1.0, 1)}

    def answer(out1, logsum1, out2, logsum2):
        import torch

        logsum = torch.logaddexp(logsum1, logsum2)
        weight1, weight2 = (logsum1 - logsum).exp(), (logsum2 - logsum).exp()
        return weight1[:, None] * out1 + weight2[:, None] * out2, logsum

    def observe(merge_blocks, case):
        offset, masked = case
        torch.manual_seed(0)
        scores, values = offset + torch.randn(2, 3, 4).double(), torch.randn(2, 4, 2).double()
        blocks = [[score.softmax(-1) @ value, score.logsumexp(-1)]
                  for score, value in zip(scores, values, strict=True)]
        if masked is not None:
            blocks[masked][0][0], blocks[masked][1][0] = 0, -torch.inf
        out, logsum = merge_blocks(*blocks[0], *blocks[1])
        return {"out": out.tolist(), "logsum": logsum.tolist()}

    rules = same("out", SHARE, within=1e-9), same("logsum", "the logarithm of which sum?", within=1e-9)
    mistakes = (
        (WEIGHT, "0.5 + 0 * logsum1, 0.5 + 0 * logsum2", "a block with larger scores counts for more"),
        (WEIGHT, "(logsum2 - logsum).exp(), (logsum1 - logsum).exp()",
         "which weight belongs to which block?"),
        (WEIGHT, "1 + 0 * logsum1, 1 + 0 * logsum2", "the weights must add up to 1"),
        ("torch.logaddexp(logsum1, logsum2)", "(logsum1.exp() + logsum2.exp()).log()",
         "exp(1,000) is infinite: take the larger one out first"),
        ("torch.logaddexp(logsum1, logsum2)", "torch.maximum(logsum1, logsum2)", SHARE),
        ("* out2, logsum", "* out2, logsum1 + logsum2", "a sum of logarithms is the logarithm of a product"))


OTHERS = "who needs the block that this rank has no use for?"


class SkippingRing(Table, InGroup):
    title = "Hunt: the rank that saves work"
    task = ("Each rank has its block of keys `k` and values `v`; `where[rank]` holds the positions of a "
            "rank's tokens. `pass_on(k, v)` gives a block to the next rank, and returns the one of the "
            "previous rank. Call `compute(k, v, block)` once for every block that some query of this rank "
            "may look at, with the number of the block's owner, and **not** for blocks that are masked as a "
            "whole. Pass on at most N − 1 times.")
    hints = ("Which lines does `continue` skip?",)
    explanation = "The block goes on whether or not this rank has a use for it."
    why = ("whether a rank *computes* may depend on its data. Whether it *communicates* must not, because "
           "the others count on it.")
    world_sizes = (2, 4)
    cases = {name: name for name in CUTS}
    waiting = OTHERS

    def answer(k, v, where, pass_on, compute):
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        for step in range(n):
            block = (rank - step) % n
            if where[rank].max() >= where[block].min():
                compute(k, v, block)
            if step < n - 1:
                k, v = pass_on(k, v)

    def observe(skipping_ring, cut):
        rank, n, computed = dist.get_rank(), dist.get_world_size(), []

        def pass_on(*tensors):
            arriving = [torch.empty_like(tensor) for tensor in tensors]
            exchange = [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in tensors]
            exchange += [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in arriving]
            for work in dist.batch_isend_irecv(exchange):
                work.wait()
            return arriving

        def compute(k, v, block):
            computed.append([int(block), k.item(), v.item()])

        k, v = torch.tensor(float(rank)), torch.tensor(10.0 + rank)
        skipping_ring(k, v, CUTS[cut](8 * n, n), pass_on, compute)
        return {"owner, k and v of each computed block": sorted(computed),
                "passed on": len(SkippingRing.traffic.sent) // 2}

    rules = (same("owner, k and v of each computed block",
                  "whose block has arrived after how many steps? Who looks at it?"),
             between("passed on", lambda wanted, case: (0, wanted["passed on"]),
                     "after N − 1 times every rank has seen every block"))
    mistakes = (
        ("if where[rank].max() >= where[block].min():", "if True:",
         "the saving is gone: masked blocks are computed"),
        ("where[rank].max()", "where[rank].min()",
         "a block is masked as a whole if even the *latest* query is too early"),
        ("(rank - step)", "(rank + step)", "blocks come from the previous rank: whose is it after one step?"),
        ("if step < n - 1:", "if True:", "what does the last step pass on, and who uses it?"))
    stops = (("compute(k, v, block)\n", "compute(k, v, block)\n        else:\n            continue\n",
              "rank 0 had returned", OTHERS),)


class Sent(torch.autograd.Function):
    """Rows go to their ranks; gradients come back the same way."""

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.counts = send, receive
        arrived = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        send, receive = ctx.counts
        return Sent.apply(gradient, receive, send), None, None


TOKEN = "slot s of `expert.flatten()` belongs to token s // k"
BACK = "the results come back sorted by expert: to which token does each row belong?"
FIRST = "how many rows will come? Only the other ranks know: exchange the counts first"


def bytes_sent(traffic, n):
    """What is exchanged is sent once, all else to every other rank."""
    return sum(traffic.sent) + sum(one.bytes * (1 if one.name.startswith("all_to_all") else n - 1)
                                   for one in traffic.collectives)


class ToTheirExperts(Table, InGroup):
    title = "Two experts for each token"
    task = ("Expert r lives on rank r, as `net`. Each rank has its tokens `x`, [tokens, width], and for each "
            "token its k experts, `expert`, [tokens, k], and how much each counts, `weight`, [tokens, k]. "
            "Return for each token the weighted sum of its experts' outputs. `exchange(rows, send, receive)` "
            "sends `send[r]` rows to rank r, in their order, returns the `receive[r]` rows of each "
            "rank, and has a backward. Only the rows that an expert needs travel to it.")
    hints = ("`expert.flatten()` has a slot for each pair of a token and an expert. Sort the slots: "
             "`argsort(stable=True)`.",
             f"{TOKEN}. So `x[order // k]` is what you send. Exchange the counts first.",
             "`torch.zeros_like(x).index_add(0, order // k, …)` adds each row to its token.")
    explanation = "The order of the slots serves twice: for sending, and for adding up the results."
    why = "this is the core of every mixture of experts. Libraries fuse its steps, and overlap them."
    world_sizes = (2, 3)
    cases = {"k = 2": (2, False), "k = 1, and nobody chooses the last expert": (1, True)}
    sizes = waiting = FIRST

    def answer(x, expert, weight, net, exchange):
        import torch
        import torch.distributed as dist

        n, k = dist.get_world_size(), expert.shape[1]
        order = expert.flatten().argsort(stable=True)
        send = torch.bincount(expert.flatten(), minlength=n)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send, receive = send.tolist(), receive.tolist()
        done = exchange(net(exchange(x[order // k], send, receive)), receive, send)
        return torch.zeros_like(x).index_add(0, order // k, done * weight.flatten()[order, None])

    def observe(to_their_experts, case):
        (k, last_is_idle), rank, n, rows = case, dist.get_rank(), dist.get_world_size(), []
        torch.manual_seed(rank)
        x = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)  # 2,048 bytes
        scores = torch.randn(16, n).double()
        scores[:, 0] += 1  # so that the ranks get unequal numbers of rows
        scores[:, -1] -= 99 * last_is_idle
        weight, expert = scores.softmax(-1).topk(k)
        net = nn.Linear(16, 16).double()
        net.register_forward_pre_hook(lambda _, given: rows.extend(given[0].tolist()))
        out = to_their_experts(x, expert, weight, net, Sent.apply)
        traffic = ToTheirExperts.traffic
        total = out.square().sum() + torch.zeros((), requires_grad=True)  # zeros, where the graph was cut
        of_x, of_bias = torch.autograd.grad(total, [x, net.bias], materialize_grads=True)
        return {"output": out.tolist(), "rows of this rank's expert": len(rows),
                "gradient of x": of_x.tolist(), "gradient of the expert": of_bias.tolist(),
                "bytes sent": bytes_sent(traffic, n)}

    rules = (same("rows of this rank's expert", "which rows need this expert, and no other?"),
             same("output", BACK, within=1e-9),
             same("gradient of x", "is everything inside the graph?", within=1e-9),
             same("gradient of the expert", "does its gradient come through `exchange`?", within=1e-9),
             between("bytes sent", lambda wanted, case: (0, wanted["bytes sent"] + 1500),  # counts as objects
                     "a row travels to its expert and back, and nothing else does, but the counts"))
    mistakes = (
        ("exchange(x[order // k]", "exchange(x[order % len(x)]", TOKEN),
        ("index_add(0, order // k", "index_add(0, torch.arange(len(order)) // k", BACK),
        ("weight.flatten()[order, None]", "weight.flatten()[:, None]",
         "the weights are not in the order of the rows"),
        (" * weight.flatten()[order, None]", "", "how much does each expert count?"),
        ((("done * weight.flatten()[order, None]", "done"),
          ("x[order // k]", "x[order // k] * weight.flatten()[order, None]")),
         "weigh what an expert makes of a token, not what it is given"),
        ("index_add(0", "index_copy(0", "a token's rows must be added up"))
    stops = (("dist.all_to_all_single(receive, send)", "receive = send", "where it expected", FIRST),)


OWNER = "torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.flatten())"
ARRIVAL = "in which order do the rows arrive: by expert, or by the rank that sent them?"


class RowsOfTwo(Table, Alone):
    title = "Hunt: the loss that falls, a little less"
    task = ("This rank has several experts, `nets`. `receive`, [ranks, experts of this rank], says how many "
            "rows came from each rank for each of them. Each rank has sent its rows sorted by expert, and "
            "`rows` holds them **as they arrived**: first all of rank 0. Return the results, in the order of "
            "`rows`. Call each net once.")
    hints = ("Write down for two ranks and two experts whose each row is: rank 0's for expert 0, rank 0's "
             "for expert 1, then?",
             "`repeat_interleave` makes from the counts, in this order, the expert of each row.")
    explanation = "A mask picks an expert's rows out of all parts, and puts the results back."
    why = ("every token still goes through *some* expert, always the same mixture of them, so training makes "
           "the best of it. Only a comparison with a dense layer shows it.")
    cases = {"two ranks, two experts": ((2, 1), (1, 3)), "three ranks": ((0, 2), (2, 2), (1, 0)),
             "three experts": ((1, 0, 2), (0, 3, 1))}

    def answer(rows, receive, nets):
        import torch

        expert = torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.flatten())
        done = torch.empty_like(rows)
        for e, net in enumerate(nets):
            done[expert == e] = net(rows[expert == e])
        return done

    def observe(rows_of_two, case):
        receive, calls = torch.tensor(case), []
        rows = torch.arange(2.0 * receive.sum()).view(-1, 2)

        def net(e):
            return lambda x: calls.append(e) or 1000 * (e + 1) + x

        done = rows_of_two(rows, receive, [net(e) for e in range(receive.shape[1])])
        return {"results": done.tolist(), "calls of a net": max(Counter(calls).values(), default=0)}

    rules = (same("results", f"{ARRIVAL} And how does its net's result get into each row?"),
             holds(lambda mine, wanted, case: (f"a net was called {mine[0]['calls of a net']} times",
                                               "once each")
                   if mine[0]["calls of a net"] > 1 else None, "collect all rows of an expert first"))
    mistakes = (
        (OWNER, "torch.arange(len(nets)).repeat_interleave(receive.sum(0))", ARRIVAL),
        (OWNER, "torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.T.flatten())",
         "`receive` has a row for each rank that sends"),
        ("done = torch.empty_like(rows)", "done = rows.clone()[expert.argsort(stable=True)]; rows = done; "
         "expert = expert.sort().values", "the results must be in the order in which the rows came"))


fair_cut, merge_blocks, skipping_ring = FairCut(), MergeBlocks(), SkippingRing()
to_their_experts, rows_of_two = ToTheirExperts(), RowsOfTwo()
