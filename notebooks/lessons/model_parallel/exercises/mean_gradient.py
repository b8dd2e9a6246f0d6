"""A hunt: micro-batches whose gradients add up to too much, because a division is missing."""

import torch
from torch import nn

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, nothing, same
from helpers.instruments.memory import held_bytes


class MeanGradient(Alone):
    title = "Hunt: eight times too large"
    task = ("`xs` and `ys` are the micro-batches of one batch, not all of the same size. `loss_fn(model(x), "
            "y)` is the mean loss of a micro-batch. Leave in the parameters the gradient of the mean loss "
            "over **all samples** of the batch. The gradients are `None` when you are called. Never hold the "
            "activations of two micro-batches. Leave `xs` and `ys` as they are.")
    hints = (
        "`backward` adds to the gradients that are there. By what must each loss be multiplied, so that "
        "the sum is the mean over all samples?",
        "A micro-batch's share of the samples is `len(x) / sum(map(len, xs))`.",
    )
    explanation = ("Each loss counts by its share of the samples. With equal micro-batches this is one "
                   "divided by their number.")
    why = ("AdamW divides each gradient by a running mean of its size, so a constant factor disappears, and "
           "the loss falls as ever. SGD takes steps that are too long. Clipping, and every log of the norm, "
           "see other gradients.")

    cases = {"8 equal ones": (4,) * 8, "sizes 5, 2 and 1": (5, 2, 1), "a single one": (6,)}

    def answer(model, loss_fn, xs, ys):
        samples = sum(map(len, xs))
        for x, y in zip(xs, ys, strict=True):                               #: loop
            (loss_fn(model(x), y) * len(x) / samples).backward()            #: backward

    def observe(mean_gradient, sizes):
        layer = nn.Linear(2, 1, bias=False)
        nn.init.ones_(layer.weight)
        model = nn.Sequential(layer, *(nn.ReLU() for _ in range(9))).double()  # each keeps an activation
        xs = [torch.ones(40 * size, 2).double() for size in sizes]
        ys = [(2 - i) * x[:, :1] / 2 for i, x in enumerate(xs)]  # alone, micro-batch i has the gradient i + 2

        given = [tensor.clone() for tensor in (*xs, *ys)]
        before = model.state_dict()["0.weight"].clone()
        with held_bytes() as held_for_the_largest:
            mean_gradient(model, nn.functional.mse_loss, [max(xs, key=len)], [max(ys, key=len)])
        model.zero_grad()
        with held_bytes() as held:
            mean_gradient(model, nn.functional.mse_loss, xs, ys)

        gradient = layer.weight.grad
        changed = []
        if not all(map(torch.equal, (*xs, *ys), given)) or len(xs) + len(ys) != len(given):
            changed.append("`xs` or `ys`")
        if not layer.weight.equal(before):
            changed.append("the weights")
        if not model.training:
            changed.append("the model's mode")
        return {
            "changed": changed,
            "gradient": None if gradient is None else round(gradient[0, 0].item(), 6),
            "micro-batches held at once": round(held.peak / max(1, held_for_the_largest.peak), 1),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        nothing("changed", "only gradients change here: a step of the optimizer, or other batches, are the caller's",
                "all but the gradients stays as it was"),
        same("gradient", "is each micro-batch used, and by how much does its loss count?", within=1e-9),
        between("micro-batches held at once", lambda wanted, case: (0, 1.4),
                "a `backward` before the next forward frees the activations, unless `retain_graph=True` or a loss "
                "that you keep holds on to them"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("gradients add up: weigh each by the share of its samples",
                backward="loss_fn(model(x), y).backward()"),
        mistake("the micro-batches are not equally large",
                backward="(loss_fn(model(x), y) * 1 / len(xs)).backward()"),
        mistake("a sample has several numbers: `len(x)` counts the samples",
                backward="(loss_fn(model(x), y) * x.numel() / samples).backward()"),
        mistake("each loss is a mean over its own samples already",
                backward="(loss_fn(model(x), y) * 1 / samples).backward()"),
        mistake("only gradients change here", backward="(loss_fn(model.eval()(x), y) * len(x) / samples).backward()"),
        mistake("only gradients change here",
                backward="(loss_fn(model(x), y) * len(x) / samples).backward()\nx.zero_()"),
        mistake("is a gradient overwritten?",
                backward="model.zero_grad()\n(loss_fn(model(x), y) * len(x) / samples).backward()"),
        mistake("is `backward` called, and are its gradients still there at the end?",
                backward="loss_fn(model(x), y) * len(x) / samples"),
        mistake("take one micro-batch after the other", loop="for x, y in [(torch.cat(xs), torch.cat(ys))]:"),
    )


mean_gradient = MeanGradient()
