"""One program, cut by tensor and by sequence, and five mistakes under which the loss falls all the same.

    launch("mistakes.py", nprocs=4)

A tiny language model: each rank has a part of each text, and a part of `up` and of `down`. The other
parameters are the same in all ranks; `words` is used twice, for words that come in and scores that go out.
Reports, for each mistake, the table of gradients, and after some steps the loss by the right measure.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, gelu, layer_norm

from helpers import report
from helpers.instruments.gradients import compare_gradients

MISTAKES = ("none", "a sum, not a mean", "a mean of means", "no sum in backward", "`norm` not summed",
            "`words` not summed")
WORDS, WIDTH, HIDDEN, LENGTH, TEXTS = 16, 16, 32, 16, 16
SHARDS = {"up": 0, "down": 1}


def parameters():
    """In the order in which backward reaches them; `words` is the first, too."""
    draw, kind = torch.Generator().manual_seed(0), torch.float64
    words, up, down = (torch.randn(*size, generator=draw, dtype=kind) / size[1] ** 0.5
                       for size in ((WORDS, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)))
    return {"down": down, "up": up, "norm": torch.ones(WIDTH, dtype=kind), "words": words}


def batch(step):
    """Four words in five follow from the one before. The first texts are short: -100 is no word."""
    draw = torch.Generator().manual_seed(step)
    text = [torch.randint(WORDS, (TEXTS,), generator=draw)]
    for _ in range(LENGTH):
        other, luck = torch.randint(WORDS, (TEXTS,), generator=draw), torch.rand(TEXTS, generator=draw)
        text.append(torch.where(luck < 0.2, other, (5 * text[-1] + 3) % WORDS))
    x, y = torch.stack(text[:-1], 1), torch.stack(text[1:], 1)
    short = torch.arange(LENGTH) > torch.arange(TEXTS)[:, None]
    return x, y.masked_fill(short, -100)


class Do(torch.autograd.Function):
    """One thing in forward, another in backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_does = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_does(gradient), None, None


def part(x):
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def gather(x):
    parts = [torch.empty_like(x).contiguous() for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def summed(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x


def part_of_sum(x):
    return part(summed(x))


def alone(x):
    return x


def loss_sum(p, x, y, enter=alone, leave=alone):
    x = p["words"][x]
    h = gelu(enter(layer_norm(x, (WIDTH,), p["norm"])) @ p["up"].T) @ p["down"].T
    return cross_entropy(((x + leave(h)) @ p["words"].T).flatten(0, 1), y.flatten(), reduction="sum")


def step(p, x, y, mistake):
    """Leave the gradients in the parameters, and return the loss of the whole batch."""
    n, y = dist.get_world_size(), part(y)
    own = (y >= 0).sum()
    count = {"a sum, not a mean": summed(own) / n, "a mean of means": own * n}.get(mistake, summed(own))
    back = part if mistake == "no sum in backward" else part_of_sum
    loss = loss_sum(p, part(x), y,
                    lambda h: Do.apply(h, gather, back), lambda h: Do.apply(h, part_of_sum, gather))
    (loss / count).backward()
    for name in ("words", "norm"):
        if mistake != f"`{name}` not summed":
            p[name].grad = summed(p[name].grad)
    return (summed(loss.detach()) / summed(own)).item()


def main(steps=40):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = {name: one.requires_grad_() for name, one in parameters().items()}
    x, y = batch(0)
    (loss_sum(whole, x, y) / (y >= 0).sum()).backward()
    reference = {name: one.grad for name, one in whole.items()}
    for mistake in MISTAKES:
        mine = {name: (one.chunk(n, SHARDS[name])[rank] if name in SHARDS else one).clone().requires_grad_()
                for name, one in parameters().items()}
        first = step(mine, x, y, mistake)
        table = compare_gradients({name: one.grad for name, one in mine.items()}, reference, SHARDS)
        optimizer = torch.optim.AdamW(mine.values(), lr=1e-2)
        for i in range(steps):
            optimizer.zero_grad()
            step(mine, *batch(i), mistake)
            optimizer.step()
        last = step(mine, x, y, mistake)
        if rank == 0:
            report(mistake=mistake, first=first, last=last, table=[str(row) for row in table])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
