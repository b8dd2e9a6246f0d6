"""Gradient accumulation under DDP: several micro-batches, one all-reduce."""

import operator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, nothing, same
from helpers.instruments.memory import held_bytes


def same_numbers(tensors, others):
    return all(map(torch.equal, tensors, others))


def step_of(model):
    """By how much a step has made the parameters smaller, which were ones before, in the mean: by name."""
    return {name: round((1 - parameter).mean().item(), 6) for name, parameter in model.named_parameters()}


class Accumulate(InGroup):
    title = "Accumulate gradients, talk once"
    task = ("`model` is a DDP model. `batches` is a list of this rank's micro-batches `(x, y)`; every rank "
            "has equally many. `loss_fn(model(x), y)` is a micro-batch's mean loss. Make **one** optimizer "
            "step with the mean gradient over all micro-batches of all ranks. All-reduce the gradients only "
            "**once**. Never hold the activations of two micro-batches. The function is called for each "
            "step: gradients of an earlier one may still be there. Leave `batches` as it is, and the optimizer's "
            "learning rate.")
    hints = (
        "`with model.no_sync():` keeps DDP from averaging. For which of the micro-batches?",
        "DDP decides in the forward whether it will average in the backward. So the forward belongs into the "
        "`with`, and usually both stand there; only the last micro-batch is outside. `contextlib.nullcontext()` is a "
        "`with` that does nothing.",
    )
    explanation = ("Gradients add up over the micro-batches, so each loss is divided by their number. The "
                   "last backward averages what has piled up: all of it, and only once.")
    why = ("over a slow network, a step waits for its all-reduces. With K micro-batches and `no_sync` there "
           "are K times fewer. If the forward is outside, the result is the same, but nothing is saved.")

    world_sizes = (3,)
    cases = {"4 micro-batches": 4, "1 micro-batch": 1}

    def answer(model, optimizer, batches, loss_fn):
        import contextlib

        optimizer.zero_grad()                                                           #: clear
        for number, (x, y) in enumerate(batches, start=1):
            last = number == len(batches)                                               #: last
            with contextlib.nullcontext() if last else model.no_sync():                 #: sync
                loss = loss_fn(model(x), y) / len(batches)                              #: loss
                loss.backward()
        optimizer.step()                                                                #: step

    def observe(accumulate, number):
        def loss_fn(outputs, targets):  # so the gradient of each bias is the mean target
            return (outputs * targets).sum(1).mean()

        plain = nn.Sequential(nn.Linear(16, 16), *(nn.ReLU() for _ in range(16))).double()
        for parameter in plain.parameters():
            nn.init.ones_(parameter)
            parameter.grad = torch.full_like(parameter, 5)  # of an earlier step
        batches = []
        for place in range(number):
            # Numbers with a mean of 1; each micro-batch has its own length.
            ramp = torch.linspace(0.5, 1.5, 48 + 4 * place, dtype=torch.float64)[:, None].expand(-1, 16).clone()
            batches.append((torch.full_like(ramp, 3), (place + 1) * 10 ** dist.get_rank() * ramp))
        given = list(batches)
        before = [(x.clone(), y.clone()) for x, y in batches]
        model = DistributedDataParallel(plain)
        averaged = []
        model.register_forward_pre_hook(lambda *_: averaged.append(model.require_backward_grad_sync))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        steps = []
        optimizer.register_step_post_hook(lambda *_: steps.append(1))

        with held_bytes() as held:
            accumulate(model, optimizer, batches, loss_fn)

        traffic = accumulate.traffic
        size = sum(parameter.nbytes for parameter in plain.parameters())
        sent = [sum(traffic.sent)]
        for collective in traffic.collectives:
            sent.append(traffic.bytes(collective.name))
        observed = {
            "batches taken away": number - sum(map(operator.is_, given, batches)),
            "batches with other numbers": number - sum(map(same_numbers, before, given)),
            "optimizer steps": len(steps),
            "all-reduces of the gradients": round(max(sent) / size),
            "forwards whose backward averages": list(averaged),
            "step": step_of(plain),
            "micro-batches held at once": round(held.peak / (17 * ramp.nbytes)),
            "afterwards": {
                "learning rate": optimizer.param_groups[0]["lr"],
                "model.training": model.training,
                "the next backward averages": model.require_backward_grad_sync,
            },
        }

        for parameter in plain.parameters():
            nn.init.ones_(parameter)
        accumulate(model, optimizer, before, loss_fn)  # a hook that stays would work again
        observed["next step"] = step_of(plain)
        return observed

    # ---------------------------------------------------------------------------------------- what must hold

    in_place = "`x /= …` and `y /= …` change the batch itself: the next epoch needs it again"
    as_it_was = ("leave the learning rate, the model's mode and its averaging as they were: the next step needs them. "
                 "(What makes a mean of a sum of gradients is a smaller loss)")
    stays = ("the function is called for each step: what has it left behind? A hook stays with the model, its "
             "parameters or the optimizer until you `remove` it")
    waiting = "do all ranks run as many backwards outside `no_sync`?"

    rules = (
        nothing("batches taken away", "`pop`, `batches[…] = …`: the next epoch needs the list again"),
        nothing("batches with other numbers", in_place),
        same("optimizer steps", "where `optimizer.step()` stands: once in every rank, at the end"),
        same("all-reduces of the gradients",
             "DDP averages in the backward whose forward was outside `no_sync`: that of the last micro-batch, and "
             "no other. (A store is another way.)"),
        same("step", "does something scale or clip the step? Each micro-batch counts the same, whatever its size. DDP "
                     "has averaged over the ranks already. And does every `backward` come before `step`?", within=1e-6),
        between("micro-batches held at once", lambda wanted, case: (0, 1),
                "call `backward` before the next forward: it frees the activations of its micro-batch. They stay "
                "with `retain_graph=True`, or while you keep the loss"),
        same("afterwards", as_it_was),
        same("next step", stays, within=1e-6),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("DDP averages in each backward: which of them belong into `no_sync`?",
                sync="with contextlib.nullcontext():"),
        mistake("the forward belongs inside `no_sync`, too: DDP decides there whether the backward averages",
                sync="loss = loss_fn(model(x), y) / len(batches)\n"
                     "with contextlib.nullcontext() if last else model.no_sync():", loss=""),
        mistake("the last micro-batch: it must not be in `no_sync`", sync="with model.no_sync():"),
        mistake("`model.module`, the model inside, knows no ranks: `model(x)`, at least for the last micro-batch",
                loss="loss = loss_fn(model.module(x), y) / len(batches)"),
        mistake("DDP has averaged already, in the backward outside `no_sync`",
                step="for one in model.parameters():\n"
                     "    torch.distributed.all_reduce(one.grad)\n"
                     "optimizer.step()"),
        mistake("gradients add up: what makes a mean of them?", loss="loss = loss_fn(model(x), y)"),
        mistake(in_place, loss="y /= len(batches)\nloss = loss_fn(model(x), y)"),
        mistake(as_it_was, clear="optimizer.zero_grad()\noptimizer.param_groups[0]['lr'] /= len(batches)",
                loss="loss = loss_fn(model(x), y)"),
        mistake(as_it_was, clear="model.eval()\noptimizer.zero_grad()"),
        mistake(stays, clear="optimizer.zero_grad()\n"
                             "for one in model.parameters():\n"
                             "    one.register_hook(lambda gradient: gradient / len(batches))",
                loss="loss = loss_fn(model(x), y)"),
        mistake("the last micro-batch belongs outside `no_sync`: no rank sends the gradients of those that follow",
                last="last = number == 1"),
        mistake("`zero_grad` in the loop: all but the last is lost", clear="",
                last="optimizer.zero_grad()\nlast = number == len(batches)"),
        mistake("gradients of an earlier step are still there: call `optimizer.zero_grad()` before the first "
                "backward", clear=""),
        mistake("`zero_grad` between backward and `step` deletes the gradients that backward has made",
                step="optimizer.zero_grad()\noptimizer.step()"),
    )


accumulate = Accumulate()
