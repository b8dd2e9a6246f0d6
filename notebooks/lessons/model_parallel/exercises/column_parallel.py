"""Tensor parallelism, by hand: each rank has some outputs of a linear layer, forward and backward."""

import torch
import torch.distributed as dist

from helpers.exercises.feedback import kind_of
from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, nothing, same


def bytes_sent(traffic, n):
    """What a rank gives to others counts once, to however many it goes; of n broadcasts it sends one."""
    return traffic.bytes() - (n - 1) / n * traffic.bytes("broadcast") + sum(traffic.sent) / (n - 1)


class ColumnParallel(InGroup):
    title = "A linear layer, split by its outputs"
    task = ("Every rank has the same input `x`, [batch, inputs], and **its own rows** of a linear layer: "
            "`weight`, [outputs of this rank, inputs], and `bias`. All ranks have equally many rows. Compute "
            "the **whole** output, [batch, all outputs], in the order of the ranks. Then call "
            "`loss_of(output).backward()`, which computes the same loss in every rank. Return the output, "
            "and leave gradients:\n\n- in `x.grad`, that of the whole layer's input, in every rank;\n"
            "- in `weight.grad` and `bias.grad`, those of this rank's rows.\n\n"
            "No rank sends more than its part of the output, and the gradient of `x`.")
    hints = (
        "Write two `torch.autograd.Function`s. One, for `x`, does nothing in forward and all-reduces in "
        "backward. The other gathers in forward, and in backward takes the gradient of this rank's "
        "part.",
        "In forward: `parts = [torch.empty_like(mine) for _ in range(n)]`, `dist.all_gather(parts, "
        "mine)`, `torch.cat(parts, 1)`. In backward: `gradient.chunk(n, 1)[rank]`.",
    )
    explanation = ("All ranks have the same loss, so the gradient of a rank's own part is whole already. The "
                   "gradient of `x` is not: each rank has only what came through its rows.")
    why = ("every tensor-parallel block begins like this. It usually saves the gather, because the next "
           "layer, split by inputs, needs exactly the part that its rank has.")

    world_sizes = (2, 3)
    # The dtype, the batch, and how many rows of the layer each rank has.
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
                dist.all_reduce(gradient)                                                   #: add
                return gradient                                                             #: added

        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, mine):
                parts = [torch.empty_like(mine) for _ in range(n)]
                dist.all_gather(parts, mine)
                return torch.cat(parts, 1)                                                  #: join

            @staticmethod
            def backward(ctx, gradient):
                return gradient.chunk(n, 1)[rank]                                           #: own

        output = Gather.apply(torch.nn.functional.linear(Copy.apply(x), weight, bias))      #: output
        loss_of(output).backward()                                                          #: backward
        return output

    def observe(column_parallel, case):
        dtype, batch, rows = case
        n, rank = dist.get_world_size(), dist.get_rank()
        inputs = 10

        def whole_numbers(*shape):  # whose sums are exact, in whichever order they are added up
            return torch.randint(1, 4, shape).to(getattr(torch, dtype))

        torch.manual_seed(0)
        x = whole_numbers(batch, inputs)
        weight = whole_numbers(n * rows, inputs)
        bias = whole_numbers(n * rows)
        slope = whole_numbers(batch, n * rows)
        own = {}
        for name, tensor in {"x": x, "weight": weight.chunk(n)[rank], "bias": bias.chunk(n)[rank]}.items():
            own[name] = tensor.clone().requires_grad_()
        before = {name: tensor.detach().clone() for name, tensor in own.items()}
        graph = torch.zeros((), requires_grad=True)  # lets `backward` run where the output has no graph

        output = column_parallel(*own.values(), lambda output: (output ** 2 * slope).sum() + graph)

        kind, values = kind_of(output), None
        if isinstance(output, torch.Tensor):
            kind, values = f"{output.dtype} {list(output.shape)}", output.tolist()
        return {
            "kind of output": kind,
            "output": values,
            "changed": [name for name, tensor in own.items() if not tensor.equal(before[name])],
            "without a gradient": [name for name, tensor in own.items() if tensor.grad is None],
            "gradients": {name: tensor.grad.tolist() for name, tensor in own.items() if tensor.grad is not None},
            "bytes sent": bytes_sent(column_parallel.traffic, n),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    in_order = "in which order, and along which dimension, are the parts put together? And the bias?"
    no_gradient = ("is `loss_of(output).backward()` called, in every rank? Autograd does not see a collective: "
                   "write an `autograd.Function` around it")
    own_rows = ("which part of the output's gradient belongs to this rank's rows? It is whole in each rank, and "
                "needs no sum. But `x` was used by all ranks")

    rules = (
        nothing("changed", "a layer reads its input and its weights, and writes neither", "they stay as they were"),
        same("kind of output", f"the `return`; {in_order}"),
        same("output", in_order),
        nothing("without a gradient", no_gradient, "gradients of all three"),
        same("gradients", own_rows),
        between("bytes sent", lambda wanted, case: (0, 1.2 * wanted["bytes sent"]),
                "the weights stay where they are, and each rank sends what only it has. All ranks have the output's "
                "gradient, so nobody sends it"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("all ranks used `x`: what must happen to its gradient in backward?", add=""),
        mistake("`x` gets the sum, not the mean, of what comes through all rows", added="return gradient / n"),
        mistake(own_rows, own="return gradient.chunk(n, 1)[0]"),
        mistake("all ranks have the same loss, so the gradient of the output is whole in each: it needs no sum",
                own="dist.all_reduce(gradient)\nreturn gradient.chunk(n, 1)[rank]"),
        mistake(no_gradient, backward=""),
        mistake(no_gradient,
                output="output = Gather.forward(None, torch.nn.functional.linear(Copy.apply(x), weight, bias))"),
        mistake("reads its input and its weights",
                output="with torch.no_grad():\n    x.mul_(n)\n"
                       "output = Gather.apply(torch.nn.functional.linear(Copy.apply(x), weight, bias))"),
        mistake("where is the bias added?",
                output="output = Gather.apply(torch.nn.functional.linear(Copy.apply(x), weight))"),
        stop("must match the size", in_order, join="return torch.cat(parts, 0)"),
    )


column_parallel = ColumnParallel()
