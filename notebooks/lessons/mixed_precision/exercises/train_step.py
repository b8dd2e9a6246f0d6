"""A training step with a loss scale: each call depends on what the calls before it have done."""

import math

import torch
from torch import nn

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import same

#: By call: the size of the gradients of the mean loss. 200 overflows at the first scale, 4096, whoever divides by when.
CALLS = {
    "1, gradients too small for fp16": 2.5e-8,
    "2, gradients to be clipped": 5,
    "3, a gradient that overflows once it is scaled": 200,
    "4, gradients to be clipped": 5,
    "5, gradients not to be clipped": 1e-3,
    "6, gradients to be clipped a little": 0.06,
    "7, a loss that is NaN": math.nan,
}
#: By the number of losses: each one's share of the mean.
SHARES = {2: (0.5, 1.5), 3: (0.25, 0.75, 2.0)}


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
    task = ("Write a training step over several small batches. Their `losses`, a list, have been computed under "
            "autocast, and there are no gradients yet. The loss of the step is the mean of `losses`. Call `backward` "
            "on each of them, or on their mean, scaled so that no gradient is lost. Then, once: clip the true "
            "gradients, all `parameters` together, to the norm `max_norm`; let the optimizer make its step, unless a "
            "gradient is infinite or NaN; let the scaler adapt its scale. Return `True` if the optimizer's step was "
            "made, and `False` if it was skipped. (A schedule then has to wait, too.) Your function is called several "
            "times, with the same `scaler` and `optimizer`. Gradients are rounded to fp16 as they come, as on a GPU.")
    hints = (
        "You need five calls: `scaler.scale(…).backward()` for each loss, `scaler.unscale_(optimizer)`, "
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)`, `scaler.step(optimizer)`, "
        "`scaler.update()`. In which order?",
        "`max_norm` is meant for true gradients. Right after `backward`, they are still multiplied by the scale. "
        "After a skipped step, `update` lowers the scale: `scaler.get_scale()` tells it, before and after.",
    )
    explanation = ("Gradients add up while they are scaled, all by the same scale. `unscale_` divides them by it, so "
                   "that clipping sees true gradients. `scaler.step` knows that they are divided already. It leaves "
                   "the step out if a gradient is infinite or NaN. `update` then halves the scale. After many good "
                   "steps it doubles the scale, so the comparison is `>=`.")
    why = ("each call depends on what the calls before it have done. Some wrong orders raise no error: the "
           "training is slow, or does not move, or breaks at the first infinite gradient.")

    cases = {"two losses, `max_norm` 1": (2, 1.0), "three losses, `max_norm` 0.5": (3, 0.5)}

    def answer(scaler, optimizer, parameters, losses, max_norm):
        for loss in losses:
            scaler.scale(loss / len(losses)).backward()             #: backward
        scaler.unscale_(optimizer)                                  #: unscale
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)        #: clip
        scale = scaler.get_scale()                                  #: before
        scaler.step(optimizer)                                      #: step
        scaler.update()                                             #: update
        return scaler.get_scale() >= scale                          #: made

    def observe(train_step, case):
        number, max_norm = case
        weights = [nn.Parameter(torch.zeros(64)) for _ in range(24)]
        optimizer = torch.optim.SGD(weights, lr=1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
        after = {}
        for words, size in CALLS.items():
            came = []
            losses = [loss_of(weights, share * size, came) for share in SHARES[number]]
            made = train_step(scaler, optimizer, list(weights), losses, max_norm)
            after[words] = {
                "gradients that came": len(came),
                "weights": [weight[0].item() for weight in weights],
                "scale": scaler.get_scale(),
                "step made": made if made is None else bool(made),
            }
            optimizer.zero_grad()
            for weight in weights:
                weight.data.zero_()
        return {"after call": after}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("after call", "first scale and `backward` for each loss, then `unscale_`, clip, `step`, `update`, each "
                           "once, whatever the gradients are; clip all parameters together to `max_norm`; return "
                           "whether the optimizer made its step", within=0.02),
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
                backward="(loss / len(losses)).backward()", unscale="", step="optimizer.step()", update=""),
        mistake("the loss of the step is the mean of `losses`: their gradients add up, so divide each",
                backward="scaler.scale(loss).backward()"),
        mistake("an update that lowers the scale follows a skipped step: read the scale before `update`, too",
                before="", update="scaler.update()\nscale = scaler.get_scale()"),
        mistake("after some good steps the scale grows: only a lower one means that the step was skipped",
                made="return scaler.get_scale() == scale"),
        mistake("return whether the step was made: `step` itself returns what the optimizer returns",
                step="made = scaler.step(optimizer)", made="return made"),
        mistake("return `True` if the step was made, `False` if it was skipped", made=""),
        mistake("clip the norm of all parameters together, not each number",
                clip="torch.nn.utils.clip_grad_value_(parameters, max_norm)"),
        stop("is being called after step()", each_once, update=""),
        stop("is being called after step()", each_once, step="scaler.update()", update="scaler.step(optimizer)"),
        stop("has already been called", each_once,
             clip="torch.nn.utils.clip_grad_norm_(parameters, max_norm)\n"
                  "scaler.unscale_(optimizer)"),
    )


train_step = TrainStep()
