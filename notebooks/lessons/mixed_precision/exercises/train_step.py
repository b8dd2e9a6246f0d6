"""A training step with a loss scale: each call depends on what the calls before it have done."""

import math

import torch
from torch import nn

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import same

#: By call: the size of the gradients. 24 overflows at the first scale, 4096, and not at its half.
CALLS = {
    "1, gradients too small for fp16": 2.5e-8,
    "2, gradients to be clipped": 5,
    "3, a gradient that overflows once it is scaled": 24,
    "4, the same again": 24,
    "5, gradients not to be clipped": 1e-3,
    "6, gradients to be clipped a little": 0.06,
    "7, a loss that is NaN": math.nan,
}


def loss_of(weights, size, came):
    """A loss with gradients of this size, rounded as on a GPU. `came` gets longer with each of them."""

    def as_on_gpu(gradient):
        came.append(1)
        return gradient.half().float()

    loss = 0
    for weight in weights:
        used = weight * 1  # its hook sees what flows back, whichever function the learner calls
        used.register_hook(as_on_gpu)
        gradient = size if weight is weights[-1] else -size / 2
        loss = loss + (used * gradient).sum()
    return loss


class TrainStep(Exercise):
    title = "The loop in the right order"
    task = ("`loss` has been computed under autocast, and there are no gradients yet. Do the rest of a training "
            "step. Scale the loss and call `backward` once, so that no gradient is lost. Clip the true "
            "gradients, all `parameters` together, to the norm `max_norm`. Let the optimizer make its step, "
            "unless a gradient is infinite or NaN. Let the scaler adapt its scale. Your function is called "
            "several times, with the same `scaler` and `optimizer`. Gradients are rounded to fp16 as they come, "
            "as on a GPU.")
    hints = (
        "You need five calls: `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, "
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)`, `scaler.step(optimizer)`, "
        "`scaler.update()`. In which order?",
        "`max_norm` is meant for true gradients. Right after `backward`, they are still multiplied by the scale.",
    )
    explanation = ("`unscale_` divides the gradients by the scale, so that clipping sees true gradients. `scaler.step` "
                   "knows that they are divided already. It leaves the step out if a gradient is infinite or NaN. "
                   "`update` then halves the scale. After many good steps it doubles the scale.")
    why = ("each call depends on what the calls before it have done. Some wrong orders raise no error: the "
           "training is slow, or does not move, or breaks at the first infinite gradient.")

    cases = {"`max_norm` 1": 1.0, "`max_norm` 0.5": 0.5}

    def answer(scaler, optimizer, parameters, loss, max_norm):
        scaler.scale(loss).backward()                               #: backward
        scaler.unscale_(optimizer)                                  #: unscale
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)        #: clip
        scaler.step(optimizer)                                      #: step
        scaler.update()                                             #: update

    def observe(train_step, max_norm):
        weights = [nn.Parameter(torch.zeros(64)) for _ in range(24)]
        optimizer = torch.optim.SGD(weights, lr=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
        after = {}
        for words, size in CALLS.items():
            came = []
            train_step(scaler, optimizer, list(weights), loss_of(weights, size, came), max_norm)
            after[words] = {
                "gradients that came": len(came),
                "weights": [weight[0].item() for weight in weights],
                "scale": scaler.get_scale(),
            }
            optimizer.zero_grad()
            for weight in weights:
                weight.data.zero_()
        return {"after call": after}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("after call", "the order is scale and `backward`, `unscale_`, clip, `step`, `update`, each once in every "
                           "call, whatever the gradients are; clip all parameters together to `max_norm`", within=0.02),
    )

    # ------------------------------------------------------------------------------------ what people write

    each_once = "one `unscale_`, one `step`, one `update`, in this order: does each call end with `update`?"

    mistakes = (
        mistake("clipped while they are still multiplied by the scale: call `unscale_` first", unscale=""),
        mistake("the gradients were not clipped: call `clip_grad_norm_` after `unscale_`", clip=""),
        mistake("`optimizer.step()` does not look for infinite gradients, but `scaler.step` does",
                step="optimizer.step()"),
        mistake("who divides the gradients by the scale?", unscale="", clip="", step="optimizer.step()", update=""),
        mistake("fp16 has rounded gradients to 0: multiply the loss by the scale before `backward`",
                backward="loss.backward()", unscale="", step="optimizer.step()", update=""),
        mistake("clip the norm of all parameters together, not each number",
                clip="torch.nn.utils.clip_grad_value_(parameters, max_norm)"),
        stop("is being called after step()", each_once, update=""),
        stop("is being called after step()", each_once, step="scaler.update()", update="scaler.step(optimizer)"),
        stop("has already been called", each_once,
             clip="torch.nn.utils.clip_grad_norm_(parameters, max_norm)\n"
                  "scaler.unscale_(optimizer)"),
    )


train_step = TrainStep()
