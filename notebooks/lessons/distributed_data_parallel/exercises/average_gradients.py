"""DDP by hand: after backward, each gradient becomes the mean over all ranks."""

import math

import torch
import torch.distributed as dist
from torch import nn

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import between, holds, nothing, same


def requires_grad(gradient):
    return gradient is not None and gradient.requires_grad


class AverageGradients(InGroup):
    title = "Your own DDP: average the gradients"
    task = ("Every rank has run `backward` on its own batch. Replace each parameter's gradient by the **mean "
            "over all ranks**: the gradient that one process would get from equally large batches of all ranks "
            "together. A parameter may have been used in some ranks only. Frozen parameters (`requires_grad` is "
            "False) are left alone.")
    hints = (
        "`dist.all_reduce(parameter.grad)` adds up, in place. How do you get from the sum to the mean?",
        "All ranks have to call the same collectives in the same order. What happens if one of them skips a "
        "parameter? Give it a gradient of zeros first: `torch.zeros_like(parameter)`.",
    )
    explanation = ("`requires_grad` is the same in all ranks, so it may decide which gradients to average. A "
                   "gradient may be missing in one rank only, so a missing one becomes zeros. (If no rank has used the "
                   "parameter, one process would leave None.)")
    why = ("with a broadcast of the weights at the start, this is DistributedDataParallel without its speed. "
           "(DDP counts a missing gradient as zeros only with `find_unused_parameters=True`; otherwise its next "
           "forward raises an error.) If something may differ between ranks, such as `parameter.grad is None`, it "
           "must never decide whether a rank calls a collective.")

    world_sizes = (2, 3)
    # The dtype of the model, and the rank in which `1.weight` was not used. The first case has no such rank: what waits
    # there waits for another reason.
    cases = {
        "float32, no gradient is missing": ("float32", None),
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
        parameters["1.bias"].grad = None
        if rank_without is None:
            parameters["0.bias"].grad = None
        elif rank == range(dist.get_world_size())[rank_without]:  # and `0.bias` has a gradient from before
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
        traffic = average_gradients.traffic
        return {
            "collectives and messages": traffic.count() + len(traffic.sent) + traffic.received,
            "weights changed": [name for name in before if not before[name].equal(parameters[name])],
            "frozen, and trained from now on": [name for name in frozen if parameters[name].requires_grad],
            "gradients that keep a graph": [name for name in trained if requires_grad(parameters[name].grad)],
            "frozen gradients": frozen,
            "gradients": trained,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = sizes = ("does every rank call the same collectives, for the same parameters, in the same order? What "
                       "decides it must be the same in all ranks")
    not_the_weights = "`parameter.grad`, not `parameter` or `parameter.data`"
    averaged = ("is `parameter.grad` itself averaged, of each parameter that is not frozen, in every rank? And "
                "what do you divide by?")

    unfrozen = "`requires_grad` is asked, and left as it was: who sets it to True?"
    without_graph = "make the mean of tensors that do not require gradients: `torch.no_grad()` or `.detach()`"

    def another_mean(mine, wanted, case):
        digits = {"float32": 1e-5, "bfloat16": 0.02}
        return same("gradients", "", within=digits[case[0]]).broken(mine, wanted, case)

    rules = (
        nothing("weights changed", not_the_weights, "none: only gradients change; the optimizer will do the rest"),
        nothing("frozen, and trained from now on", unfrozen),
        nothing("gradients that keep a graph", without_graph),
        same("frozen gradients", "`parameter.requires_grad`: an optimizer with weight decay would move what is frozen"),
        between("collectives and messages", lambda wanted, case: (1, math.inf),
                "`dist.all_reduce`, and whether the loop around it ever runs"),
        holds(another_mean, averaged),
    )

    # ------------------------------------------------------------------------------------ what people write

    def everybody_sends_first(model):
        import torch
        import torch.distributed as dist

        others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                for other in others:
                    dist.send(parameter.grad, other)
                received = torch.empty_like(parameter.grad)
                for other in others:
                    dist.recv(received, other)
                    parameter.grad += received
                parameter.grad /= dist.get_world_size()

    def nobody_receives(lost):
        return all(rank.sent > 0 and rank.asked_for == 0 for rank in lost)

    def only_where_a_gradient_is_missing(lost):
        _, rank_without = lost[0].case
        return rank_without is not None

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
        mistake(unfrozen, divide="parameter.grad /= dist.get_world_size()\nmodel.requires_grad_(True)"),
        mistake(without_graph, divide="parameter.grad = parameter.grad.requires_grad_(True) / dist.get_world_size()"),
        stop(nobody_receives, "every rank sends, and `send` may wait until the other rank receives",
             everybody_sends_first),
        stop(only_where_a_gradient_is_missing,
             "a rank without a gradient skips the collective in which the others wait: it counts as zeros",
             frozen="if parameter.grad is not None:"),
        stop("NoneType", "a rank without a gradient counts as zeros: `torch.zeros_like(parameter)`", zeros=""),
    )


average_gradients = AverageGradients()
