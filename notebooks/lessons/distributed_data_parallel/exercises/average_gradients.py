"""DDP by hand: after backward, each gradient becomes the mean over all ranks."""

import math

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, holds, nothing, same


class AverageGradients(InGroup):
    title = "Your own DDP: average the gradients"
    task = ("Every rank has run `backward` on its own batch. Replace each parameter's gradient by the **mean "
            "over all ranks**. A parameter that one rank did not use has no gradient there (`None`): it "
            "counts as zeros, and has the mean afterwards, like the others. Frozen parameters "
            "(`requires_grad` is False) are left alone.")
    hints = (
        "`dist.all_reduce(parameter.grad)` adds up, in place. How do you get from the sum to the mean?",
        "All ranks have to call the same collectives in the same order. What happens if one of them skips a "
        "parameter? Give it a gradient of zeros first: `torch.zeros_like(parameter)`.",
    )
    explanation = ("`requires_grad` is the same in all ranks, so it may decide which gradients to average. A "
                   "gradient may be missing in one rank only, so a missing one becomes zeros.")
    why = ("with a broadcast of the weights at the start, this is DistributedDataParallel without its speed. "
           "If something may differ between ranks, such as `parameter.grad is None`, it must never decide "
           "whether a rank calls a collective.")

    world_sizes = (2, 3)
    # The dtype of the model, and the rank in which `1.weight` was not used.
    cases = {
        "float32, `1.weight.grad` is None in the last rank": ("float32", -1),
        "bfloat16, it is None in rank 0": ("bfloat16", 0),
    }

    def answer(model):
        import torch
        import torch.distributed as dist

        for parameter in model.parameters():
            if parameter.requires_grad:                                 #: frozen
                if parameter.grad is None:                              #: zeros
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)                         #: reduce
                parameter.grad /= dist.get_world_size()                 #: divide

    def observe(average_gradients, case):
        dtype, rank_without = case
        rank = dist.get_rank()
        torch.manual_seed(rank)  # weights that differ: averaging those shows
        model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Linear(2, 2), nn.Linear(2, 2))
        parameters = dict(model.to(getattr(torch, dtype)).named_parameters())
        for number, parameter in enumerate(parameters.values(), start=1):
            gradient = 10 ** rank * (1000 * number + torch.arange(1, parameter.numel() + 1))  # 2003: the second's third
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype)
        for name in ("0.bias", "1.bias"):
            parameters[name].requires_grad = False
        parameters["1.bias"].grad = None  # the other frozen one has a gradient from before
        if rank == range(dist.get_world_size())[rank_without]:
            parameters["1.weight"].grad = None
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}

        average_gradients(model)

        frozen, trained = {}, {}
        for name, parameter in parameters.items():
            values = None if parameter.grad is None else parameter.grad.flatten().tolist()
            if name in ("0.bias", "1.bias"):
                frozen[name] = values
            else:
                trained[name] = values
        return {
            "collectives called": average_gradients.traffic.count(),
            "weights changed": [name for name in before if not before[name].equal(parameters[name])],
            "frozen gradients": frozen,
            "gradients": trained,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = sizes = ("what decides whether a parameter is skipped, and in which order they come: is it the "
                       "same in all ranks?")
    not_the_weights = "`parameter.grad`, not `parameter` or `parameter.data`"
    averaged = ("is `parameter.grad` itself averaged, of each parameter that is not frozen, in every rank? And "
                "what do you divide by?")

    def another_mean(mine, wanted, case):
        digits = {"float32": 1e-5, "bfloat16": 0.02}
        return same("gradients", "", within=digits[case[0]]).broken(mine, wanted, case)

    rules = (
        nothing("weights changed", not_the_weights, "none: only gradients change; the optimizer will do the rest"),
        same("frozen gradients", "`parameter.requires_grad`: an optimizer with weight decay would move what is frozen"),
        between("collectives called", lambda wanted, case: (1, math.inf),
                "`dist.all_reduce`, and whether the loop around it ever runs"),
        holds(another_mean, averaged),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("`all_reduce` adds up: what makes a mean of the sum?", divide=""),
        mistake("what you write before an asynchronous `all_reduce` is waited for may be lost",
                reduce="work = dist.all_reduce(parameter.grad, async_op=True)",
                divide="parameter.grad /= dist.get_world_size()\nwork.wait()"),
        mistake("`all_reduce` works in place: on which tensor?", reduce="dist.all_reduce(parameter.grad.clone())"),
        mistake("`reduce` gives the sum to one rank alone", reduce="dist.reduce(parameter.grad, 0)"),
        mistake("`broadcast` adds nothing up", reduce="dist.broadcast(parameter.grad, 0)"),
        mistake("the dtype in which the gradients are added up: it has too few digits",
                zeros="if parameter.grad is None:\n"
                      "    parameter.grad = torch.zeros_like(parameter)\n"
                      "parameter.grad = parameter.grad.half().to(parameter.dtype)"),
        mistake(not_the_weights, zeros="", reduce="dist.all_reduce(parameter.data)",
                divide="parameter.data /= dist.get_world_size()"),
        mistake("who decides what is frozen? `parameter.requires_grad`", frozen="if True:"),
        stop("waited in vain",
             "a rank without a gradient skips the collective in which the others wait: it counts as zeros",
             frozen="if parameter.grad is not None:"),
        stop("NoneType", "a rank without a gradient counts as zeros: `torch.zeros_like(parameter)`", zeros=""),
    )


average_gradients = AverageGradients()
