"""The exercises of model parallelism: a schedule, a layer split by columns, a mesh, and a division forgotten."""

import math
import numbers

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from helpers.exercises.alone import Alone
from helpers.exercises.engine import not_yet
from helpers.exercises.group import InGroup
from helpers.instruments.memory import held_bytes
from helpers.instruments.schedules import simulate


class OneFOneB(Alone):
    title = "A schedule without waste"
    task = ("Return the list of what `rank` does in a pipeline of `ranks` stages with `micro_batches` micro-batches: "
            "pairs `(\"F\", i)` and `(\"B\", i)`, each micro-batch once forward and once backward. Run by the lesson's"
            " loop with all other ranks' lists, the pipeline must end as early as it can, after 3(m + p − 1) units, "
            "and rank `r` may never hold more than p − r micro-batches between their forward and their backward.")
    hints = ("The last rank can do the backward of a micro-batch right after its forward. How long must the rank "
             "before it wait for the first gradient, and how many forwards fit in?",
             "First p − 1 − r forwards (or all, if there are fewer), then by turns one forward and one backward, then "
             "the backwards that are left.")
    explanation = ("The warm-up fills the stages behind this one. From then on each backward makes room for one "
                   "forward, so what is held stays the same.")
    why = ("GPipe's order has the same bubble, and holds the activations of the whole batch. With 1F1B the smaller the"
           " micro-batches are, the less is held, and the smaller is the bubble. Large trainings begin with it.")
    cases = {f"{p} stages, {m} micro-batches": (p, m) for p, m in ((2, 2), (4, 8), (4, 2), (3, 7), (1, 3), (5, 5))}

    def answer(rank, ranks, micro_batches):
        warm = min(micro_batches, ranks - 1 - rank)
        todo = [("F", i) for i in range(warm)]
        for i in range(micro_batches - warm):
            todo += [("F", warm + i), ("B", i)]
        return todo + [("B", i) for i in range(micro_batches - warm, micro_batches)]

    def probe(one_f_one_b, case):
        p, m = case
        orders = [[tuple(step) for step in one_f_one_b(rank, p, m)] for rank in range(p)]
        wanted = {(what, i) for what in "FB" for i in range(m)}
        for rank, order in enumerate(orders):
            odd = [step for step in order if step not in wanted]
            missing = sorted(wanted - set(order))
            if odd or missing:
                return not_yet(f"rank {rank}'s list " + (f"holds {odd[0]}" if odd else f"lacks {missing[0]}"),
                               f'("F", i) and ("B", i) for each i from 0 to {m - 1}', "")
        try:
            timeline = simulate(orders)
        except ValueError as error:
            return not_yet(str(error), "every instruction is done once, after those that it needs",
                           "a backward needs the rank's own forward, and the backward of the rank behind: which rank "
                           "gets its first gradient last, and can make most forwards before it? From then on, does a "
                           "forward follow each backward?")
        for rank, held in enumerate(timeline.held):
            if held > p - rank:
                return not_yet(f"rank {rank} held {held} micro-batches", f"at most {p - rank}",
                               "when is the first backward possible, and what can be done by turns from then on?")
        if timeline.end > 3 * (m + p - 1):
            return not_yet(f"it takes {timeline.end} units", f"{3 * (m + p - 1)}",
                           "is a rank waiting for a gradient while it could do a forward? And do its backwards come "
                           "in the order of its forwards?")
        return None


class ColumnParallel(InGroup):
    title = "A linear layer, split by its outputs"
    task = ("Every rank has the same input `x`, of shape [batch, inputs], and **its own rows** of a linear layer: "
            "`weight`, [outputs of this rank, inputs], and `bias`; all ranks have equally many. Compute the **whole** "
            "output, [batch, all outputs], in the order of the ranks; then call `loss_of(output).backward()`, which "
            "computes the same loss in every rank. Leave in `x.grad` the gradient of the whole layer's input, in every"
            " rank, and in `weight.grad` and `bias.grad` those of this rank's rows. Return the output. No rank sends "
            "more than its part of the output, and the gradient of `x`.")
    hints = ("Two `torch.autograd.Function`s: one that does nothing in forward and all-reduces in backward, for `x`; "
             "one that gathers in forward and, in backward, gives each rank the gradient of its own part.",
             "In forward: `parts = [torch.empty_like(mine) for _ in range(n)]`, `dist.all_gather(parts, mine)`, "
             "`torch.cat(parts, 1)`. In backward: `gradient.chunk(n, 1)[rank]`.")
    explanation = ("Gathering hands out what each rank has computed; since all ranks have the same loss, the gradient "
                   "of one's own part is whole already. That of `x` is not: each rank has only what came through its "
                   "rows.")
    why = ("this is the first half of every tensor-parallel block, with a gather that one usually saves: the next "
           "layer, split by inputs, wants exactly the part that its rank has.")
    world_sizes = (2, 3)
    cases = {"float32": ("float32", 4, 30), "float64, a batch of 1": ("float64", 1, 20)}

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
                gradient = gradient.clone(memory_format=torch.contiguous_format)  # autograd may use it elsewhere
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

    def probe(column_parallel, case):
        (dtype, batch, rows), n, rank, inputs = case, dist.get_world_size(), dist.get_rank(), 40
        torch.manual_seed(0)
        whole = torch.nn.Linear(inputs, rows * n, dtype=getattr(torch, dtype))
        x = torch.randn(batch, inputs, dtype=whole.weight.dtype, requires_grad=True)
        target = torch.randn(batch, rows * n, dtype=whole.weight.dtype)

        graph = torch.zeros((), requires_grad=True)  # without, an output that has none raises before it can be judged

        def loss_of(output):
            return (output - target).pow(3).sum() + graph

        output = whole(x)
        loss_of(output).backward()
        slope = 3 * (output - target).detach() ** 2
        mine = [one.detach().clone().requires_grad_()
                for one in (x, whole.weight.chunk(n)[rank], whole.bias.chunk(n)[rank])]
        returned = column_parallel(*mine, loss_of)
        traffic = ColumnParallel.traffic  # of n broadcasts a rank sends one; and what goes to all others counts once
        sent = traffic.bytes() - (n - 1) / n * traffic.bytes("broadcast") + sum(traffic.sent) / (n - 1)
        wanted = x.grad, whole.weight.grad.chunk(n)[rank], whole.bias.grad.chunk(n)[rank]
        own = slope.chunk(n, 1)[rank] @ mine[1].detach()

        def near(one, other):
            same = isinstance(one, torch.Tensor) and one.shape == other.shape
            return same and torch.allclose(one, other, rtol=1e-4, atol=1e-4)

        grads = {name: near(one.grad, other)
                 for name, one, other in zip(("x", "weight", "bias"), mine, wanted, strict=True)}
        return {"output": near(returned, output), "shape": list(getattr(returned, "shape", ())), "grads": grads,
                "type": "" if isinstance(returned, torch.Tensor) else type(returned).__name__,
                "own": near(mine[0].grad, own), "times": [name for place, name in ((1, "weight"), (0, "x"))
                                                          if near(mine[place].grad, n * wanted[place])],
                "none": [name for name, one in zip(grads, mine, strict=True) if one.grad is None],
                "sent": sent / x.element_size()}

    def judge(self, seen, case):
        n, (_, batch, rows) = len(seen), case
        for rank, one in enumerate(seen):
            if one["type"]:
                return not_yet(f"rank {rank} returned a {one['type']}", "the whole output, a tensor", "the `return`")
            if not one["output"]:
                return not_yet(f"rank {rank}'s output, of shape {one['shape']}, is not that of the whole layer",
                               f"[{batch}, {rows * n}], the ranks' parts side by side",
                               "in which order, and along which dimension, are the parts put together? And the bias?")
        for rank, one in enumerate(seen):
            if one["none"]:
                return not_yet(f"the output is right, but rank {rank}'s `{one['none'][0]}` has no gradient",
                               "gradients of all three", "is it `x` itself that the layer is given, or a copy of it? "
                               "And does each `backward` return a gradient?"
                               if one["none"] == ["x"] else
                               "is `loss_of(output).backward()` called, in every rank? A collective on tensors leaves "
                               "no trace for it: what stands for one in an `autograd.Function`?")
            if one["own"] and not one["grads"]["x"]:
                return not_yet(f"rank {rank}'s `x.grad` holds only what came through its own rows",
                               "the sum over ranks",
                               "all ranks used `x`: what must happen to its gradient in backward?")
            if one["times"]:
                return not_yet(f"rank {rank}'s `{one['times'][0]}.grad` is {n} times too large", "the layer's, once",
                               "all ranks have the same loss: is the gradient of the output added up over ranks, or "
                               "that of `x` more than once?")
            for name, right in one["grads"].items():
                if not right:
                    return not_yet(f"rank {rank}'s `{name}.grad` is not that of the whole layer", "the same numbers",
                                   "what does backward do where forward gathers? " + (
                                       "And `x` gets the sum, not the mean, of what comes through all rows"
                                       if name == "x" else "These rows are this rank's alone: no other adds to them"))
        for rank, one in enumerate(seen):
            if one["sent"] > 1.2 * (40 + rows) * batch:
                return not_yet(f"all is right, but rank {rank} put {one['sent']:g} numbers into collectives",
                               f"its part of the output and the gradient of `x`: {rows * batch + 40 * batch}",
                               "weights stay where they are, and each rank gives what only it has; the gradient of "
                               "the output, which all ranks have, need not be sent at all")
        return None


class ChooseMesh(Alone):
    title = "The mesh that fits and sends least"
    task = ("`costs(copies, shards, tensor)` says what one rank of such a mesh would hold and send in a step: a pair "
            "(GiB held, GiB sent). Among all meshes of `gpus` ranks (`copies * shards * tensor == gpus`, each a whole "
            "number), with at most 8 tensor-parallel ranks, as many as a machine has, return as a tuple the one that "
            "holds at most `limit` GiB and sends least. If none fits, return `None`.")
    hints = ("For each `tensor` from 1 to 8 that divides `gpus`, and each `shards` that divides the rest: what is left "
             "are the copies.", "`min` with a `key` finds the one that sends least among those that fit.")
    explanation = "There are few enough divisors to ask for all of them; a dry run of each is what `costs` stands for."
    why = ("nobody knows the best mesh from a rule of thumb: it depends on the model, the batch and the memory. Asking"
           " a model of the costs for every mesh takes seconds; asking the cluster takes weeks.")
    cases = {f"{gpus} GPUs of {limit} GiB": (gpus, limit, seed) for gpus, limit, seed in
             ((64, 73, 0), (64, 24, 1), (96, 40, 2), (7, 80, 3), (16, 1, 4), (64, 60, 5), (64, 80, 6), (12, 16, 3),
              (8, 80, 7))}

    def answer(gpus, costs, limit):
        fitting = {}
        for tensor in range(1, 9):
            for shards in range(1, gpus + 1):
                if gpus % (tensor * shards) == 0:
                    mesh = gpus // (tensor * shards), shards, tensor
                    held, sent = costs(*mesh)
                    if held <= limit:
                        fitting[mesh] = sent
        return min(fitting, key=fitting.get, default=None)

    def probe(choose_mesh, case):
        gpus, limit, seed = case
        asked = []

        def costs(copies, shards, tensor):
            asked.append((copies, shards, tensor))
            return _costs(copies, shards, tensor, seed)

        returned = choose_mesh(gpus, costs, limit)
        found, best = _mesh(returned), ChooseMesh.answer(gpus, lambda *mesh: _costs(*mesh, seed), limit)
        if found == best:
            return None
        if best is None:
            return not_yet(f"it returned {found}", "`None`: no mesh fits",
                           "what is compared with `limit`?" if found else "`None`, not an empty tuple")
        held, least = _costs(*best, seed)
        expected = f"{best}, which holds {held:.1f} GiB and sends {least:.3g}"
        look = ("which of those that fit sends least? What a mesh holds comes first in its pair, and `limit` may be "
                "just met: `<=`" if best in asked else
                "it was never asked for: which numbers may each of the three be?")
        if found is None:
            return not_yet("it returned `None`", expected, look)
        if not isinstance(found, tuple) or len(found) != 3:
            return not_yet(f"it returned {type(returned).__name__}", expected, "a tuple of three numbers")
        if math.prod(found) != gpus or not all(isinstance(one, int) and one >= 1 for one in found) or found[2] > 8:
            return not_yet(f"{found} is no mesh of {gpus} ranks with at most 8 tensor-parallel", expected,
                           "the product of the three, and the last of them")
        held, sent = _costs(*found, seed)
        if held <= limit and sent <= least + 1e-6:  # as good as ours
            return None
        return not_yet(f"{found} holds {held:.1f} GiB and sends {sent:.3g}", expected,
                       f"it does not fit in {limit} GiB: do you ask `costs{found}`, and compare its first number?"
                       if held > limit else look)


def _mesh(found):
    """What a function returned, as a tuple of plain numbers; its repr where it is neither such a thing nor None."""
    if isinstance(found, (tuple, list)) and all(isinstance(one, numbers.Real) for one in found):
        return tuple(int(one) if float(one).is_integer() else float(one) for one in found)
    return None if found is None else repr(found)


def _costs(copies, shards, tensor, seed):
    """GiB held and sent by a rank of a model like those of the lesson; which way is cheap depends on the seed."""
    states, kept, gathered = ((60, 12, 8), (200, 40, 6), (90, 20, 13), (30, 8, 3), (400, 60, 9), (90, 400, 5),
                              (100, 4, 20), (30, 8, 0))[seed]
    held = states / (shards * tensor) + kept / tensor + 1
    sent = (1.5 * gathered * (shards > 1) + gathered * (copies > 1)) / tensor + kept * 0.7 * (1 - 1 / tensor)
    return held, sent + 0.001 * (shards - 1)


class MeanGradient(Alone):
    title = "Hunt: eight times too large"
    task = ("`xs` and `ys` are the micro-batches of one batch, not all of the same size; `loss_fn(model(x), y)` is the"
            " mean loss of a micro-batch. Leave in the parameters the gradient of the mean loss over **all samples** "
            "of the batch. The gradients are `None` when you are called. Never hold the activations of two micro-"
            "batches.")
    hints = ("`backward` adds to the gradients that are there. What is the sum of means, and what is the mean of all?",
             "A micro-batch's share of the samples is `len(x) / sum(map(len, xs))`.")
    explanation = ("Each loss counts by its share of the samples; with equal micro-batches that is one divided by "
                   "their number.")
    why = ("AdamW divides each gradient by its own running size, so a factor that is always there disappears, and the "
           "loss falls as ever. SGD takes steps that are too long; clipping, and every log of the norm, see another "
           "training.")
    cases = {"8 equal ones": (4,) * 8, "sizes 5, 2 and 1": (5, 2, 1), "a single one": (6,)}

    def answer(model, loss_fn, xs, ys):
        samples = sum(map(len, xs))
        for x, y in zip(xs, ys, strict=True):
            (loss_fn(model(x), y) * len(x) / samples).backward()

    def probe(mean_gradient, sizes):
        torch.manual_seed(0)
        inside = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), *inside, nn.Linear(32, 4)).double()
        xs = [torch.randn(200 * size, 16).double() for size in sizes]  # beside these, a second gradient is nothing
        ys = [torch.randn(200 * size, 4).double() for size in sizes]

        def gradient(x, y):
            return parameters_to_vector(torch.autograd.grad(nn.functional.mse_loss(model(x), y), model.parameters()))

        parts = [gradient(x, y) for x, y in zip(xs, ys, strict=True)]
        wanted = gradient(torch.cat(xs), torch.cat(ys))
        with held_bytes() as one:
            mean_gradient(model, nn.functional.mse_loss, [max(xs, key=len)], [max(ys, key=len)])
        model.zero_grad()
        with held_bytes() as held:
            mean_gradient(model, nn.functional.mse_loss, xs, ys)
        grads = [parameter.grad for parameter in model.parameters()]
        wrong, expected = "the gradient is not that of the whole batch:", "the mean over all samples"
        if any(grad is None for grad in grads):
            return not_yet(f"{wrong} some parameter has none", expected, "`backward`")
        got = parameters_to_vector(grads)
        guesses = {"": wanted, "gradients add up: what makes a mean of them?": sum(parts),
                   "the micro-batches are not equally large": sum(parts) / len(parts),
                   "each loss is a mean over its own samples already": sum(parts) / sum(map(len, xs)),
                   "how many samples are there? The micro-batches are not as large as the first":
                   wanted * sum(sizes) / (len(sizes) * sizes[0]),
                   "is a gradient overwritten?": parts[-1] * got.norm() / parts[-1].norm()}  # whatever multiplied it
        look = next((look for look, guess in guesses.items() if torch.allclose(got, guess, rtol=1e-6, atol=1e-9)),
                    "does each micro-batch go through, and what does its loss count? Is what was there before changed?")
        if look:
            return not_yet(f"{wrong} its norm is {(got.norm() / wanted.norm()).item():.3g} times that", expected, look)
        if (times := held.peak / max(1, one.peak)) > 1.4 and len(sizes) > 1:
            return not_yet(f"the gradient is right, but {times:.1f} times the memory of the largest micro-batch was "
                           "held", "one at a time", "a `backward` before the next forward frees it, unless "
                           "`retain_graph=True`, or a loss that you keep, holds on to it")
        return None


one_f_one_b, column_parallel, choose_mesh, mean_gradient = OneFOneB(), ColumnParallel(), ChooseMesh(), MeanGradient()
