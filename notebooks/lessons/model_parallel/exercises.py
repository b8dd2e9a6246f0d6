"""The exercises of model parallelism: a schedule, a layer split by columns, and a division forgotten."""

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.group import InGroup
from helpers.exercises.tables import Table, between, each, nothing, same
from helpers.instruments.memory import held_bytes
from lessons.model_parallel.schedules import simulate

WARM = "min(micro_batches, ranks - 1 - rank)"
COOL = "for i in range(micro_batches - warm, micro_batches)"
TURNS = "when is the first backward possible, and what can be done by turns from then on?"
WAITS = ("is a rank waiting for a gradient while it could do a forward? And do its backwards come in the "
         "order of its forwards?")


def other_steps(mine, wanted, case):
    for rank, (order, right) in enumerate(zip(mine["orders"], wanted["orders"], strict=True)):
        expected = f'("F", i) and ("B", i) for each i from 0 to {case[1] - 1}'
        if not set(order) <= set(right):
            odd = next(step for step in order if step not in right)
            return f"rank {rank}'s list holds {odd}", expected
        if not set(order) >= set(right):
            return f"rank {rank}'s list lacks {min(set(right) - set(order))}", expected


def too_many_held(mine, wanted, case):
    for rank, held in enumerate(mine["held"]):
        if held > case[0] - rank:
            return f"rank {rank} held {held} micro-batches", f"at most {case[0] - rank}"


class OneFOneB(Table, Alone):
    title = "A schedule without waste"
    task = ("Return the list of what `rank` does in a pipeline of `ranks` stages with `micro_batches` "
            "micro-batches: pairs `(\"F\", i)` and `(\"B\", i)`, each micro-batch once forward and once "
            "backward. Run by the lesson's loop with all other ranks' lists, the pipeline must end as early "
            "as it can, after 3(m + p − 1) units, and rank `r` may never hold more than p − r micro-batches "
            "between their forward and their backward.")
    hints = ("The last rank can do the backward of a micro-batch right after its forward. How long must the "
             "rank before it wait for the first gradient, and how many forwards fit in?",
             "First p − 1 − r forwards (or all, if there are fewer), then by turns one forward and one "
             "backward, then the backwards that are left.")
    explanation = ("The warm-up fills the stages behind this one. From then on each backward makes room for "
                   "one forward, so what is held stays the same.")
    why = ("GPipe's order has the same bubble, and holds the activations of the whole batch. With 1F1B the "
           "smaller the micro-batches are, the less is held, and the smaller is the bubble. Large trainings "
           "begin with it.")
    cases = {f"{p} stages, {m} micro-batches": (p, m)
             for p, m in ((2, 2), (4, 8), (4, 2), (3, 7), (1, 3), (5, 5))}

    def answer(rank, ranks, micro_batches):
        warm = min(micro_batches, ranks - 1 - rank)
        todo = [("F", i) for i in range(warm)]
        for i in range(micro_batches - warm):
            todo += [("F", warm + i), ("B", i)]
        return todo + [("B", i) for i in range(micro_batches - warm, micro_batches)]

    def observe(one_f_one_b, case):
        p, m = case
        orders = [[tuple(step) for step in one_f_one_b(rank, p, m)] for rank in range(p)]
        try:
            timeline = simulate(orders)
        except ValueError as error:
            return {"orders": orders, "it cannot run": str(error)}
        return {"orders": orders, "it cannot run": "", "held": timeline.held, "units of time": timeline.end}

    rules = (
        each(other_steps, "count the steps of each list: every micro-batch goes once forward, and once "
                          "backward"),
        nothing("it cannot "
                "run", "a backward needs the rank's own forward, and the backward of the rank "
                "behind: which rank gets its first gradient last, and can make most forwards before it?",
                "every instruction is done once, after those that it needs"),
        each(too_many_held, TURNS),
        between("units of time", lambda wanted, case: (0, wanted["units of time"]), WAITS),
    )
    mistakes = (
        (WARM, "micro_batches", f"all forwards first is GPipe's order: {TURNS}"),
        (WARM, "min(micro_batches, ranks - rank)",
         "the warm-up is one forward too long: the turns begin with another one"),
        (WARM, "max(0, min(micro_batches, ranks - 2 - rank))",
         "the warm-up is one forward too short: while it waits for the gradient, the rank could do one more"),
        (WARM, "min(micro_batches, rank)",
         "which rank gets its first gradient last? It makes the most forwards before it"),
        (WARM, "ranks - 1 - rank",
         "with fewer micro-batches than ranks behind, the warm-up is all of them, and no more"),
        ('("F", warm + i), ("B", i)]', '("B", i), ("F", warm + i)]',
         "after the warm-up, what comes first? The last rank has had no forward yet"),
        (f' + [("B", i) {COOL}]', "",
         "the forwards of the warm-up need their backwards, too: at the end of the list"),
        (COOL, "for i in reversed(range(micro_batches - warm, micro_batches))",
         "in which order do the last gradients arrive? Backwards come in the order of their forwards"),
    )


NO_GRADIENT = ("is `loss_of(output).backward()` called, in every rank? A collective on tensors leaves no "
               "trace for it: what stands for one in an `autograd.Function`?")
OWN = "which part of the output's gradient belongs to this rank's rows? And `x` was used by all ranks"
TWICE = "all ranks have the same loss: the gradient of the output is whole in each, and not a part of a sum"
ORDER = "in which order, and along which dimension, are the parts put together? And the bias?"
ONLY_OWN = ("weights stay where they are, and each rank gives what only it has; the gradient of the output, "
            "which all ranks have, need not be sent at all")
UNSUMMED = "            return gradient"
SUM = f"            dist.all_reduce(gradient)\n{UNSUMMED}"
RETURN = "    return output"


def split_layer(column_parallel, dtype, batch, rows):
    """What the function leaves of a linear layer of which each rank has so many rows."""
    n, rank, inputs = dist.get_world_size(), dist.get_rank(), 10
    torch.manual_seed(0)
    shapes = (batch, inputs), (n * rows, inputs), (n * rows,), (batch, n * rows)
    # Whole numbers, because their sums are exact, in whichever order they are added up.
    x, weight, bias, slope = (torch.randint(1, 4, shape).to(getattr(torch, dtype)) for shape in shapes)
    own = {"x": x, "weight": weight.chunk(n)[rank], "bias": bias.chunk(n)[rank]}
    own = {name: tensor.clone().requires_grad_() for name, tensor in own.items()}
    graph = torch.zeros((), requires_grad=True)  # lets `backward` run where the output has no graph

    output = column_parallel(*own.values(), lambda output: (output ** 2 * slope).sum() + graph)
    is_tensor = isinstance(output, torch.Tensor)
    return {
        "kind of output": f"{output.dtype} {list(output.shape)}" if is_tensor else type(output).__name__,
        "output": output.tolist() if is_tensor else None,
        "without a gradient": [name for name, one in own.items() if one.grad is None],
        "gradients": {name: one.grad.tolist() for name, one in own.items() if one.grad is not None}}


def bytes_sent(traffic, n):
    """What a rank gives to others counts once, to however many it goes; of n broadcasts it sends one."""
    return traffic.bytes() - (n - 1) / n * traffic.bytes("broadcast") + sum(traffic.sent) / (n - 1)


class ColumnParallel(Table, InGroup):
    title = "A linear layer, split by its outputs"
    task = ("Every rank has the same input `x`, of shape [batch, inputs], and **its own rows** of a linear "
            "layer: `weight`, [outputs of this rank, inputs], and `bias`; all ranks have equally many. "
            "Compute the **whole** output, [batch, all outputs], in the order of the ranks; then call "
            "`loss_of(output).backward()`, which computes the same loss in every rank. Leave in `x.grad` the "
            "gradient of the whole layer's input, in every rank, and in `weight.grad` and `bias.grad` those "
            "of this rank's rows. Return the output. No rank sends more than its part of the output, and the "
            "gradient of `x`.")
    hints = ("Two `torch.autograd.Function`s: one that does nothing in forward and all-reduces in backward, "
             "for `x`; one that gathers in forward and, in backward, gives each rank the gradient of its own "
             "part.",
             "In forward: `parts = [torch.empty_like(mine) for _ in range(n)]`, `dist.all_gather(parts, "
             "mine)`, `torch.cat(parts, 1)`. In backward: `gradient.chunk(n, 1)[rank]`.")
    explanation = ("Gathering hands out what each rank has computed; since all ranks have the same loss, the "
                   "gradient of one's own part is whole already. That of `x` is not: each rank has only what "
                   "came through its rows.")
    why = ("this is the first half of every tensor-parallel block, with a gather that one usually saves: the "
           "next layer, split by inputs, wants exactly the part that its rank has.")
    world_sizes = (2, 3)
    cases = {"float32": ("float32", 2, 4), "float64, a batch of 1": ("float64", 1, 3)}

    def answer(x, weight, bias, loss_of):
        import torch
        import torch.distributed as dist

        n, rank = dist.get_world_size(), dist.get_rank()

        class Copy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, gradient):
                # A copy, because autograd may use this gradient elsewhere.
                gradient = gradient.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(gradient)
                return gradient

        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, mine):
                parts = [torch.empty_like(mine) for _ in range(n)]
                dist.all_gather(parts, mine)
                return torch.cat(parts, 1)

            @staticmethod
            def backward(ctx, gradient):
                return gradient.chunk(n, 1)[rank]

        output = Gather.apply(torch.nn.functional.linear(Copy.apply(x), weight, bias))
        loss_of(output).backward()
        return output

    def observe(column_parallel, case):
        left = split_layer(column_parallel, *case)
        return left | {"bytes sent": bytes_sent(ColumnParallel.traffic, dist.get_world_size())}

    rules = (same("kind of output", f"the `return`; {ORDER}"), same("output", ORDER),
             nothing("without a gradient", NO_GRADIENT, "gradients of all three"), same("gradients", OWN),
             between("bytes sent", lambda wanted, case: (0, 1.2 * wanted["bytes sent"]), ONLY_OWN))
    mistakes = (
        (SUM, UNSUMMED, "all ranks used `x`: what must happen to its gradient in backward?"),
        (SUM, f"{SUM} / n", "`x` gets the sum, not the mean, of what comes through all rows"),
        (RETURN, f"    dist.all_reduce(x.grad)\n{RETURN}", "the gradient of `x` is summed more than once"),
        ("return gradient.chunk(n, 1)[rank]", "return gradient.chunk(n, 1)[0]", OWN),
        ("return gradient.chunk", "dist.all_reduce(gradient)\n            return gradient.chunk", TWICE),
        ("    loss_of(output).backward()\n", "", NO_GRADIENT),
        ("Gather.apply(", "Gather.forward(None, ", NO_GRADIENT),
        ("Copy.apply(x)", "Copy.apply(x.detach().requires_grad_())", "is it `x` itself that the layer is "
                                                                     "given?"),
        (", weight, bias))", ", weight))", "where is the bias added?"))
    stops = (("torch.cat(parts, 1)", "torch.cat(parts, 0)", "must match the size", ORDER),)


class MeanGradient(Table, Alone):
    title = "Hunt: eight times too large"
    task = ("`xs` and `ys` are the micro-batches of one batch, not all of the same size; `loss_fn(model(x), "
            "y)` is the mean loss of a micro-batch. Leave in the parameters the gradient of the mean loss "
            "over **all samples** of the batch. The gradients are `None` when you are called. Never hold the "
            "activations of two micro-batches.")
    hints = ("`backward` adds to the gradients that are there. What is the sum of means, and what is the "
             "mean of all?", "A micro-batch's share of the samples is `len(x) / sum(map(len, xs))`.")
    explanation = ("Each loss counts by its share of the samples; with equal micro-batches that is one "
                   "divided by their number.")
    why = ("AdamW divides each gradient by its own running size, so a factor that is always there "
           "disappears, and the loss falls as ever. SGD takes steps that are too long; clipping, and every "
           "log of the norm, see another training.")
    cases = {"8 equal ones": (4,) * 8, "sizes 5, 2 and 1": (5, 2, 1), "a single one": (6,)}

    def answer(model, loss_fn, xs, ys):
        samples = sum(map(len, xs))
        for x, y in zip(xs, ys, strict=True):
            (loss_fn(model(x), y) * len(x) / samples).backward()

    def observe(mean_gradient, sizes):
        weight = nn.Linear(1, 1, bias=False)
        nn.init.ones_(weight.weight)
        model = nn.Sequential(weight, *(nn.ReLU() for _ in range(9))).double()  # each keeps an activation
        xs = [torch.ones(200 * size, 1).double() for size in sizes]
        ys = [-i * x / 2 for i, x in enumerate(xs)]  # so that alone, micro-batch i has the gradient i + 2
        with held_bytes() as one:
            mean_gradient(model, nn.functional.mse_loss, [max(xs, key=len)], [max(ys, key=len)])
        model.zero_grad()
        with held_bytes() as held:
            mean_gradient(model, nn.functional.mse_loss, xs, ys)
        gradient = weight.weight.grad
        return {
            "gradient": None if gradient is None else round(gradient.item(), 6),
            "micro-batches held at once": round(held.peak / max(1, one.peak), 1)}

    rules = (
        same("gradient", "does each micro-batch go through, and what does its loss count? Is what was there "
             "before changed?", within=1e-9),
        between("micro-batches held at once", lambda wanted, case: (0, 1.4),
                "a `backward` before the next forward frees it, unless `retain_graph=True`, or a loss that "
                "you keep, holds on to it"),
    )
    mistakes = (
        (" * len(x) / samples)", ")", "gradients add up: what makes a mean of them?"),
        ("len(x) / samples", "1 / len(xs)", "the micro-batches are not equally large"),
        ("len(x) / ", "1 / ", "each loss is a mean over its own samples already"),
        ("/ samples", "/ (len(xs) * len(xs[0]))",
         "how many samples are there? The micro-batches are not as large as the first"),
        ("strict=True):\n", "strict=True):\n        model.zero_grad()\n", "is a gradient overwritten?"),
        (".backward()", "", "is `backward` called?"),
        ("        (loss_fn(model(x), y) * len(x) / samples).backward()",
         "        loss = loss_fn(model(x), y) * len(x) / samples\n        loss.backward(retain_graph=True)",
         "`retain_graph=True` keeps the activations for as long as the loss is there"),
        ("zip(xs, ys, strict=True)", "[(torch.cat(xs), torch.cat(ys))]", "one micro-batch after the other"),
    )


one_f_one_b, column_parallel, mean_gradient = OneFOneB(), ColumnParallel(), MeanGradient()
