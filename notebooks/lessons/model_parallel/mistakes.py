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
WORDS = 16
WIDTH = 16
HIDDEN = 32
LENGTH = 16
TEXTS = 16
SHARDS = {"up": 0, "down": 1}
"""The dimension along which a parameter is split; the others are whole in every rank."""


def parameters():
    """In the order in which backward reaches them; `words` is the first, too."""
    generator = torch.Generator().manual_seed(0)

    def draw(outputs, inputs):
        return torch.randn(outputs, inputs, generator=generator, dtype=torch.float64) / inputs ** 0.5

    words = draw(WORDS, WIDTH)
    up = draw(HIDDEN, WIDTH)
    down = draw(WIDTH, HIDDEN)
    norm = torch.ones(WIDTH, dtype=torch.float64)
    return {"down": down, "up": up, "norm": norm, "words": words}


def batch(step):
    """Four words in five follow from the one before. The first texts are short: -100 is no word."""
    generator = torch.Generator().manual_seed(step)
    words = [torch.randint(WORDS, (TEXTS,), generator=generator)]
    for _ in range(LENGTH):
        other = torch.randint(WORDS, (TEXTS,), generator=generator)
        luck = torch.rand(TEXTS, generator=generator)
        follows = (5 * words[-1] + 3) % WORDS
        words.append(torch.where(luck < 0.2, other, follows))
    x = torch.stack(words[:-1], dim=1)
    y = torch.stack(words[1:], dim=1)
    after_the_end = torch.arange(LENGTH) > torch.arange(TEXTS)[:, None]
    return x, y.masked_fill(after_the_end, -100)


class ForwardBackward(torch.autograd.Function):
    """Calls a function `forward` in the forward pass, and a function `backward` in the backward pass."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_does = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_does(gradient), None, None


def part(x):
    """This rank's part of the sequence."""
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def gather(x):
    """The whole sequence, from the parts of all ranks."""
    parts = [torch.empty_like(x).contiguous() for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, 1)


def summed(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x


def part_of_sum(x):
    return part(summed(x))


def unchanged(x):
    return x


def loss_sum(p, x, y, enter=unchanged, leave=unchanged):
    """The sum of all words' losses. `enter` and `leave` communicate before `up` and after `down`."""
    x = p["words"][x]
    h = enter(layer_norm(x, (WIDTH,), p["norm"]))
    h = gelu(h @ p["up"].T) @ p["down"].T
    scores = (x + leave(h)) @ p["words"].T
    return cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="sum")


def step(p, x, y, mistake):
    """Leave the gradients in the parameters, and return the loss of the whole batch."""
    n = dist.get_world_size()
    y = part(y)
    own_words = (y >= 0).sum()
    all_words = summed(own_words)
    divisor = all_words
    if mistake == "a sum, not a mean":
        divisor = all_words / n
    elif mistake == "a mean of means":
        divisor = own_words * n
    # Each rank's part of `up` used the whole sequence, so its gradient is a term of a sum.
    enter_backward = part_of_sum
    if mistake == "no sum in backward":
        enter_backward = part

    def enter(h):
        return ForwardBackward.apply(h, gather, enter_backward)

    def leave(h):
        return ForwardBackward.apply(h, part_of_sum, gather)

    loss = loss_sum(p, part(x), y, enter, leave)
    (loss / divisor).backward()
    # These two are whole in every rank, and have seen a part of the sequence.
    for name in ("words", "norm"):
        if mistake != f"`{name}` not summed":
            p[name].grad = summed(p[name].grad)
    return (summed(loss.detach()) / all_words).item()


def gradients(p):
    return {name: parameter.grad for name, parameter in p.items()}


def gradients_of_one_process(x, y):
    p = parameters()
    for parameter in p.values():
        parameter.requires_grad_()
    (loss_sum(p, x, y) / (y >= 0).sum()).backward()
    return gradients(p)


def parameters_of_this_rank():
    own = {}
    for name, parameter in parameters().items():
        if name in SHARDS:
            parameter = parameter.chunk(dist.get_world_size(), SHARDS[name])[dist.get_rank()]
        own[name] = parameter.clone().requires_grad_()
    return own


def main(steps=40):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    x, y = batch(0)
    reference = gradients_of_one_process(x, y)
    for mistake in MISTAKES:
        mine = parameters_of_this_rank()
        first = step(mine, x, y, mistake)
        table = compare_gradients(gradients(mine), reference, SHARDS)
        optimizer = torch.optim.AdamW(mine.values(), lr=1e-2)
        for i in range(steps):
            optimizer.zero_grad()
            step(mine, *batch(i), mistake)
            optimizer.step()
        last = step(mine, x, y, mistake)
        if dist.get_rank() == 0:
            report(mistake=mistake, first=first, last=last, table=[str(row) for row in table])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
