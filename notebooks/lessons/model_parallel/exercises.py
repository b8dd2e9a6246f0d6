"""The exercises of model parallelism: a schedule, a layer split by columns, and a division forgotten."""

from collections import Counter

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
TURNS = "when is the first backward possible? From then on forward and backward take turns"
NEEDS = ("a backward needs the rank's own forward, and the backward of the rank behind. Which rank gets its "
         "first gradient last, and can do most forwards before it?")
WAITS = ("is a rank waiting for a gradient while it could do a forward? And do its backwards come in the "
         "order of its forwards?")


def other_steps(mine, wanted, case):
    for rank, (order, right) in enumerate(zip(mine["orders"], wanted["orders"], strict=True)):
        has, needs = Counter(order), Counter(right)
        for words, steps in ("holds", has - needs), ("lacks", needs - has):
            if steps:
                expected = f"F and B from 0 to {case[1] - 1}, each once"
                return f"rank {rank}'s list {words} {min(steps, key=str)}", expected


def too_many_held(mine, wanted, case):
    for rank, held in enumerate(mine["held"]):
        if held > case[0] - rank:
            return f"rank {rank} held {held} micro-batches", f"at most {case[0] - rank}"


class OneFOneB(Table, Alone):
    title = "A schedule without waste"
    task = ("Return the list of what `rank` does in a pipeline of `ranks` stages with `micro_batches` "
            "micro-batches: pairs `(\"F\", i)` and `(\"B\", i)`, each micro-batch once forward and once "
            "backward. When the lesson's loop runs the lists of all p ranks with m micro-batches, the "
            "pipeline must end as early as it can, after 3(m + p − 1) units of time. Rank `r` may never hold "
            "more than p − r micro-batches between their forward and their backward.")
    hints = ("The last rank can do the backward of a micro-batch right after its forward. How long must the "
             "rank before it wait for the first gradient, and how many forwards fit into this time?",
             "First p − 1 − r forwards (or all, if there are fewer). Then one forward and one backward in "
             "turns. Then the backwards that are left.")
    explanation = ("The first forwards fill the stages behind this one. From then on each backward makes "
                   "room for one forward, so a rank holds no more.")
    why = ("GPipe's order has the same bubble, and holds the activations of the whole batch. With 1F1B you "
           "can cut the batch into smaller micro-batches: then a rank holds less, and the bubble is smaller, "
           "too.")
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
        except (TypeError, ValueError) as error:
            return {"orders": orders, "it cannot run": str(error)}
        return {"orders": orders, "it cannot run": "", "held": timeline.held, "units of time": timeline.end}

    rules = (
        each(other_steps, "count the steps: `(\"F\", i)` and `(\"B\", i)`, once for each i from 0"),
        nothing("it cannot run", NEEDS, "every instruction is done once, after those that it needs"),
        each(too_many_held, TURNS),
        between("units of time", lambda wanted, case: (0, wanted["units of time"]), WAITS))
    mistakes = (
        (WARM, "micro_batches", f"all forwards first is GPipe's order: {TURNS}"),
        (WARM, "min(micro_batches, ranks - rank)", "there is one forward too many before the turns begin"),
        (WARM, "max(0, min(micro_batches, ranks - 2 - rank))",
         "there is one forward too few before the turns begin"),
        (WARM, "min(micro_batches, rank)",
         "the rank that gets its first gradient last does most forwards before it"),
        (WARM, "ranks - 1 - rank", "with fewer micro-batches than ranks behind, there are no more forwards"),
        ('("F", warm + i), ("B", i)]', '("B", i), ("F", warm + i)]',
         "after the first forwards, what comes next? The last rank has had no forward yet"),
        (f' + [("B", i) {COOL}]', "", "the first forwards need their backwards, too: at the end of the list"))


NO_GRADIENT = ("is `loss_of(output).backward()` called, in every rank? Autograd does not see a collective: "
               "write an `autograd.Function` around it")
OWN = "which part of the output's gradient belongs to this rank's rows? And `x` was used by all ranks"
TWICE = "all ranks have the same loss, so the gradient of the output is whole in each: it needs no sum"
ORDER = "in which order, and along which dimension, are the parts put together? And the bias?"
ONLY_OWN = ("the weights stay where they are, and each rank sends what only it has. All ranks have the "
            "output's gradient, so nobody sends it")
UNSUMMED = "            return gradient"
SUM = f"            dist.all_reduce(gradient)\n{UNSUMMED}"


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
    task = ("Every rank has the same input `x`, [batch, inputs], and **its own rows** of a linear layer: "
            "`weight`, [outputs of this rank, inputs], and `bias`. All ranks have equally many rows. Compute "
            "the **whole** output, [batch, all outputs], in the order of the ranks. Then call "
            "`loss_of(output).backward()`, which computes the same loss in every rank. Return the output, "
            "and leave gradients:\n\n- in `x.grad`, that of the whole layer's input, in every rank;\n"
            "- in `weight.grad` and `bias.grad`, those of this rank's rows.\n\n"
            "No rank sends more than its part of the output, and the gradient of `x`.")
    hints = ("Write two `torch.autograd.Function`s. One, for `x`, does nothing in forward and all-reduces in "
             "backward. The other gathers in forward, and in backward takes the gradient of this rank's "
             "part.",
             "In forward: `parts = [torch.empty_like(mine) for _ in range(n)]`, `dist.all_gather(parts, "
             "mine)`, `torch.cat(parts, 1)`. In backward: `gradient.chunk(n, 1)[rank]`.")
    explanation = ("All ranks have the same loss, so the gradient of a rank's own part is whole already. The "
                   "gradient of `x` is not: each rank has only what came through its rows.")
    why = ("every tensor-parallel block begins like this. It usually saves the gather, because the next "
           "layer, split by inputs, needs exactly the part that its rank has.")
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
        ("return gradient.chunk(n, 1)[rank]", "return gradient.chunk(n, 1)[0]", OWN),
        ("return gradient.chunk", "dist.all_reduce(gradient)\n            return gradient.chunk", TWICE),
        ("    loss_of(output).backward()\n", "", NO_GRADIENT),
        ("Gather.apply(", "Gather.forward(None, ", NO_GRADIENT),
        (", weight, bias))", ", weight))", "where is the bias added?"))
    stops = (("torch.cat(parts, 1)", "torch.cat(parts, 0)", "must match the size", ORDER),)


class MeanGradient(Table, Alone):
    title = "Hunt: eight times too large"
    task = ("`xs` and `ys` are the micro-batches of one batch, not all of the same size. `loss_fn(model(x), "
            "y)` is the mean loss of a micro-batch. Leave in the parameters the gradient of the mean loss "
            "over **all samples** of the batch. The gradients are `None` when you are called. Never hold the "
            "activations of two micro-batches.")
    hints = ("`backward` adds to the gradients that are there. By what must each loss be multiplied, so that "
             "the sum is the mean over all samples?",
             "A micro-batch's share of the samples is `len(x) / sum(map(len, xs))`.")
    explanation = ("Each loss counts by its share of the samples. With equal micro-batches this is one "
                   "divided by their number.")
    why = ("AdamW divides each gradient by a running mean of its size, so a constant factor disappears, and "
           "the loss falls as ever. SGD takes steps that are too long. Clipping, and every log of the norm, "
           "see other gradients.")
    cases = {"8 equal ones": (4,) * 8, "sizes 5, 2 and 1": (5, 2, 1), "a single one": (6,)}

    def answer(model, loss_fn, xs, ys):
        samples = sum(map(len, xs))
        for x, y in zip(xs, ys, strict=True):
            (loss_fn(model(x), y) * len(x) / samples).backward()

    def observe(mean_gradient, sizes):
        weight = nn.Linear(2, 1, bias=False)
        nn.init.ones_(weight.weight)
        model = nn.Sequential(weight, *(nn.ReLU() for _ in range(9))).double()  # each keeps an activation
        xs = [torch.ones(200 * size, 2).double() for size in sizes]
        ys = [(2 - i) * x[:, :1] / 2 for i, x in enumerate(xs)]  # alone, micro-batch i has the gradient i + 2
        with held_bytes() as one:
            mean_gradient(model, nn.functional.mse_loss, [max(xs, key=len)], [max(ys, key=len)])
        model.zero_grad()
        with held_bytes() as held:
            mean_gradient(model, nn.functional.mse_loss, xs, ys)
        gradient = weight.weight.grad
        return {
            "gradient": None if gradient is None else round(gradient[0, 0].item(), 6),
            "micro-batches held at once": round(held.peak / max(1, one.peak), 1)}

    rules = (
        same("gradient", "is each micro-batch used, and by how much does its loss count?", within=1e-9),
        between("micro-batches held at once", lambda wanted, case: (0, 1.4),
                "a `backward` before the next forward frees the activations, unless `retain_graph=True` or a "
                "loss that you keep holds on to them"))
    mistakes = (
        (" * len(x) / samples)", ")", "gradients add up: weigh each by the share of its samples"),
        ("len(x) / samples", "1 / len(xs)", "the micro-batches are not equally large"),
        ("len(x) / ", "x.numel() / ", "a sample has several numbers: `len(x)` counts the samples"),
        ("len(x) / ", "1 / ", "each loss is a mean over its own samples already"),
        ("strict=True):\n", "strict=True):\n        model.zero_grad()\n", "is a gradient overwritten?"),
        (".backward()", "", "is `backward` called, and are its gradients still there at the end?"),
        ("zip(xs, ys, strict=True)", "[(torch.cat(xs), torch.cat(ys))]",
         "take one micro-batch after the other"))


one_f_one_b, column_parallel, mean_gradient = OneFOneB(), ColumnParallel(), MeanGradient()
