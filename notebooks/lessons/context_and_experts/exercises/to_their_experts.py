"""A mixture of experts, by hand: tokens travel to the ranks of their experts, and the results back."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, same


class Choice(NamedTuple):
    """Of experts, by all tokens."""

    k: int
    last_is_idle: bool
    """No token of any rank chooses the last expert, which then gets no rows at all."""


class Exchange(torch.autograd.Function):
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
        return Exchange.apply(gradient, receive, send), None, None


def bytes_sent(traffic, ranks):
    """What is exchanged is sent once, all else to every other rank."""
    total = sum(traffic.sent)
    for call in traffic.collectives:
        if call.name.startswith("all_to_all"):
            total += call.bytes
        else:
            total += call.bytes * (ranks - 1)
    return total


class ToTheirExperts(InGroup):
    title = "Two experts for each token"
    task = ("Expert r lives on rank r, as `net`. Each rank has its tokens `x`, [tokens, width], and for each "
            "token its k experts, `expert`, [tokens, k], and how much each counts, `weight`, [tokens, k]. The router "
            "learns through `weight`. "
            "Return for each token the weighted sum of its experts' outputs. `exchange(rows, send, receive)` "
            "sends `send[r]` rows to rank r, in their order, returns the `receive[r]` rows of each "
            "rank, and has a backward. Only the rows that an expert needs travel to it.")
    token_of_a_slot = "slot s of `expert.flatten()` belongs to token s // k"
    hints = (
        "`expert.flatten()` has a slot for each pair of a token and an expert. Sort the slots: "
        "`argsort(stable=True)`.",
        f"{token_of_a_slot}. So `x[order // k]` is what you send. Exchange the counts first.",
        "`torch.zeros_like(x).index_add(0, order // k, …)` adds each row to its token.",
    )
    explanation = "The order of the slots serves twice: for sending, and for adding up the results."
    why = "this is the core of every mixture of experts. Libraries fuse its steps, and overlap them."

    world_sizes = (2, 3)
    cases = {
        "k = 2": Choice(k=2, last_is_idle=False),
        "k = 1, and nobody chooses the last expert": Choice(k=1, last_is_idle=True),
    }

    def answer(x, expert, weight, net, exchange):
        import torch
        import torch.distributed as dist

        n, k = dist.get_world_size(), expert.shape[1]
        order = expert.flatten().argsort(stable=True)
        send = torch.bincount(expert.flatten(), minlength=n)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)                                                           #: counts
        send, receive = send.tolist(), receive.tolist()                                                 #: lists
        done = exchange(net(exchange(x[order // k], send, receive)), receive, send)                     #: travel
        return torch.zeros_like(x).index_add(0, order // k, done * weight.flatten()[order, None])       #: add

    def observe(to_their_experts, choice):
        rank, n = dist.get_rank(), dist.get_world_size()
        rows = []
        torch.manual_seed(rank)
        x = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)  # 2,048 bytes
        scores = torch.randn(16, n).double()
        scores[:, 0] += 1  # so that the ranks get unequal numbers of rows
        if choice.last_is_idle:
            scores[:, -1] -= 99
        weight, expert = scores.softmax(-1).topk(choice.k)
        weight.requires_grad_()
        net = nn.Linear(16, 16).double()
        net.register_forward_pre_hook(lambda _, inputs: rows.extend(inputs[0].tolist()))

        out = to_their_experts(x, expert, weight, net, Exchange.apply)

        traffic = to_their_experts.traffic  # that of backward, below, is not in it
        total = out.square().sum() + torch.zeros((), requires_grad=True)  # zeros, where the graph was cut
        of_x, of_weight, of_bias = torch.autograd.grad(total, [x, weight, net.bias], materialize_grads=True)
        return {
            "output": out.tolist(),
            "rows of this rank's expert": len(rows),
            "gradient of x": of_x.tolist(),
            "gradient of weight": of_weight.tolist(),
            "gradient of the expert": of_bias.tolist(),
            "bytes sent": bytes_sent(traffic, n),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    counts_first = "how many rows will come? Only the other ranks know: exchange the counts first"
    waiting = counts_first
    sizes = counts_first
    back_to_tokens = "the results come back sorted by expert: to which token does each row belong?"

    rules = (
        same("rows of this rank's expert", "which rows need this expert, and no other?"),
        same("output", back_to_tokens, within=1e-9),
        same("gradient of x", "is everything inside the graph?", within=1e-9),
        same("gradient of weight", "the router learns through `weight`: is it inside the graph?", within=1e-9),
        same("gradient of the expert", "does its gradient come through `exchange`?", within=1e-9),
        between("bytes sent", lambda wanted, case: (0, wanted["bytes sent"] + 1500),  # counts as objects
                "a row travels to its expert and back, and nothing else does, but the counts"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(token_of_a_slot,
                travel="done = exchange(net(exchange(x[order % len(x)], send, receive)), receive, send)"),
        mistake(back_to_tokens,
                add="slots = torch.arange(len(order))\n"
                    "return torch.zeros_like(x).index_add(0, slots // k, done * weight.flatten()[order, None])"),
        mistake("the weights are not in the order of the rows",
                add="return torch.zeros_like(x).index_add(0, order // k, done * weight.flatten()[:, None])"),
        mistake("how much does each expert count?", add="return torch.zeros_like(x).index_add(0, order // k, done)"),
        mistake("each weight counts as it is: those of a token need not add up to 1",
                add="weight = weight / weight.sum(1, keepdim=True)\n"
                    "return torch.zeros_like(x).index_add(0, order // k, done * weight.flatten()[order, None])"),
        mistake("weigh what an expert makes of a token, not what it is given",
                travel="rows = x[order // k] * weight.flatten()[order, None]\n"
                       "done = exchange(net(exchange(rows, send, receive)), receive, send)",
                add="return torch.zeros_like(x).index_add(0, order // k, done)"),
        mistake("a token's rows must be added up",
                add="return torch.zeros_like(x).index_copy(0, order // k, done * weight.flatten()[order, None])"),
        stop("where it expected", counts_first, counts="receive = send"),
        stop("incompatible function arguments", "`exchange` takes the counts as lists of numbers: `.tolist()`",
             lists="pass"),
    )


to_their_experts = ToTheirExperts()
