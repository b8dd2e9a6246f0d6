"""Attention over a sequence that is cut, held against torch's over all of it; and what the experts learn."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from helpers import launch
from helpers.instruments.memory import held_bytes
from helpers.instruments.waits import form_group
from helpers.instruments.wire import wire_bytes
from lessons.context_and_experts.cuts import CUTS
from lessons.context_and_experts.exercises import rows_of_two


def trial(way, cut, heads=8, length=256, width=16):
    """Call `way(q, k, v, where)` in this rank, with its tokens. How far are output and gradients from the whole's?

    Bytes are told in blocks: one block is a rank's part of q, or of k, or of v.
    """
    form_group(60)
    torch.set_num_threads(1)
    where = CUTS[cut](length, dist.get_world_size())
    own = where[dist.get_rank()]
    torch.manual_seed(0)
    q, k, v, slope = torch.randn(4, heads, length, width, dtype=torch.float64)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    right = scaled_dot_product_attention(*whole, is_causal=True)
    right.backward(slope)

    mine = [x[:, own].clone().requires_grad_() for x in (q, k, v)]
    before_forward = bytes_so_far()
    with held_bytes() as held:
        out = way(*mine, where)
    after_forward = bytes_so_far()
    out.backward(slope[:, own])
    after_backward = bytes_so_far()

    gradients_off = 0.0
    for part, whole_tensor in zip(mine, whole, strict=True):
        gradients_off = max(gradients_off, difference(part.grad, whole_tensor.grad[:, own]))
    block = mine[0].nbytes
    return {"output": difference(out, right[:, own]), "gradients": gradients_off,
            "forward": (after_forward - before_forward) / block,
            "backward": (after_backward - after_forward) / block,
            "held": held.peak / block}


def difference(x, y):
    return (x - y).abs().max().item()


def compare(way):
    """Try a way in four ranks, with both cuts; print how far it is from one process, return what the ranks found."""
    for cut in CUTS:
        ranks = launch(trial, nprocs=4, args=(way, cut), show=False).results
        output = max(rank["output"] for rank in ranks)
        gradients = max(rank["gradients"] for rank in ranks)
        print(f"{way.__name__:8} {cut:10} differs from one process by at most {output:.0e},",
              f"its gradients by {gradients:.0e}")
    return ranks


def bytes_so_far():
    dist.barrier()  # what still waits to be sent would not count
    return wire_bytes()


def make(experts, liking=0.0, width=16):
    """A router and the experts, the same in every rank. The router may like expert 0."""
    torch.manual_seed(14)  # with which every expert gets some tokens at first
    router = nn.Linear(width, experts, bias=False).double()
    with torch.no_grad():
        router.weight[0] += liking  # all tokens have a 1 in common
    nets = nn.ModuleList()
    for _ in range(experts):
        net = nn.Sequential(nn.Linear(width, width // 4), nn.GELU(), nn.Linear(width // 4, width))
        nets.append(net.double())
    return router, nets


def batch(step, rank, tokens=64, width=16, kinds=8):
    """Tokens of eight kinds, and what the layer is to make of them: each kind is turned in its own way."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(kinds, width, generator=generator).double()
    turns = torch.randn(kinds, width, width, generator=generator).double() / width ** 0.5
    generator.manual_seed(1000 * step + rank + 1)
    kind = torch.randint(kinds, (tokens,), generator=generator)
    x = centres[kind] + 0.3 * torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    return x + 1, torch.einsum("ti,tij->tj", x, turns[kind])


def train(layer, route, balance, coefficient, run_of, liking=0.0, experts=4, steps=150):
    """Train; return by step the rows that this rank got, by sender and expert, and its loss."""
    form_group(60)
    torch.set_num_threads(1)
    rank, n = dist.get_rank(), dist.get_world_size()
    router, nets = make(experts, liking)
    own = nets[rank * experts // n:(rank + 1) * experts // n]
    parameters = [*router.parameters(), *own.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=5e-3)
    received = []
    losses = []
    for step in range(steps):
        x, y = batch(step, rank)
        probabilities, weight, expert = route(router(x))
        out, receive = layer(x, expert, weight, run_of(own), experts)
        loss = (out - y).square().mean()
        optimizer.zero_grad()
        (loss + coefficient * balance(probabilities, expert)).backward()
        dist.all_reduce(router.weight.grad)
        for parameter in parameters:
            parameter.grad /= n  # an expert's gradient is the sum over all ranks' losses already
        optimizer.step()
        received.append(receive)
        losses.append(loss.item())
    return received, losses


def with_the_solution(own):
    """The function that runs this rank's experts on the rows that have arrived: the last exercise's solution."""
    return lambda rows, receive: rows_of_two.answer(rows, receive, own)
