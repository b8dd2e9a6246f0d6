"""The convergence explorer: workers, sync interval and label skew, from trainings that were really run."""

import math
from dataclasses import dataclass, field

import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import nn

from helpers.widgets.explorer import Explorer, widgets
from lessons.parallel_sgd.shards import batches, skewed_split, tensors
from lessons.parallel_sgd.task import TASKS

WORKERS = (1, 2, 4, 8)
#: Steps between two averagings; 0 stands for once per epoch.
EVERY = (1, 4, 16, 0)
SKEWS = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class Curve:
    """One training: what the test says after each epoch."""

    accuracy: list = field(default_factory=list)
    """Of the averaged model."""
    own: list = field(default_factory=list)
    """Of the workers' own models just before the last averaging of the epoch; their mean."""
    loss: list = field(default_factory=list)
    averagings: int = 0
    """In one epoch."""


def train_grid(workers=WORKERS, every=EVERY, skews=SKEWS, epochs=5):
    """Train the digits once for every combination: {(workers, every, skew): Curve}.

    The same steps as in sgd_every_k.py, in this process: the workers' networks are stacked into one tensor, and so are
    all settings with the same number of workers, so that one step of torch is a step of them all.

    Raises:
        ValueError: no epochs, a negative interval, or what `skewed_split` refuses.
    """
    if epochs < 1 or min(every) < 0:
        raise ValueError(f"epochs must be 1 or more and intervals 0 or more, not {epochs} and {min(every)}")
    grid, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are small: several threads would only wait for each other
    try:
        for number in workers:
            settings = [(k, skew) for skew in skews for k in every]
            if number == 1:  # there is nobody to average with, and nothing to split: one training stands for all
                (alone,) = _train(1, [(0, 0.0)], epochs).values()
                grid |= {(1, k, skew): alone for k, skew in settings}
            else:
                grid |= _train(number, settings, epochs)
    finally:
        torch.set_num_threads(threads)
    return grid


def _train(workers, settings, epochs):
    """{(workers, every, skew): Curve} of all settings (every, skew) of one number of workers, trained side by side."""
    task = TASKS["Digits"]
    images, labels = tensors(task)
    test_images, test_labels = tensors(task, train=False)
    images, test_images = images.flatten(1), test_images.flatten(1)
    splits = {skew: skewed_split(labels, workers, skew) for _, skew in settings}
    shards = [shard for _, skew in settings for shard in splits[skew]]
    per_epoch = math.ceil(min(map(len, shards)) / task.batch)
    # [settings × workers, …]: every worker of every setting has weights of its own
    weights = [p.detach().repeat(len(shards), *[1] * p.dim()).requires_grad_() for p in task.model().parameters()]
    velocities = [torch.zeros_like(tensor) for tensor in weights]
    last = [step + 1 == per_epoch for step in range(per_epoch)]
    due = torch.tensor([[last[step] or (k > 0 and (step + 1) % k == 0) for k, _ in settings]
                        for step in range(per_epoch)])

    def outputs(x, first, first_bias, second, second_bias):
        hidden = torch.baddbmm(first_bias.unsqueeze(1), x, first.transpose(1, 2)).relu()
        return torch.baddbmm(second_bias.unsqueeze(1), hidden, second.transpose(1, 2))

    def test():
        with torch.no_grad():
            seen = outputs(test_images.expand(len(shards), -1, -1), *weights)
            many = test_labels.expand(len(shards), -1)
            losses = nn.functional.cross_entropy(seen.transpose(1, 2), many, reduction="none").mean(1)
            return [part.view(len(settings), workers).mean(1).tolist()
                    for part in ((seen.argmax(2) == many).float().mean(1), losses)]

    curves = [Curve(averagings=int(due[:, number].sum())) for number in range(len(settings))]
    for epoch in range(epochs):
        passes = [_padded(shard[torch.cat(batches(len(shard), task.batch, epoch, number % workers)[:per_epoch])],
                          per_epoch, task.batch) for number, shard in enumerate(shards)]
        rows_of, shares_of = (torch.stack(part, dim=1) for part in zip(*passes, strict=True))
        for step, (rows, share) in enumerate(zip(rows_of, shares_of, strict=True)):
            losses = nn.functional.cross_entropy(outputs(images[rows], *weights).transpose(1, 2), labels[rows],
                                                 reduction="none")
            gradients = torch.autograd.grad((losses * share).sum(), weights)
            with torch.no_grad():  # what torch.optim.SGD does, without the seconds that its import takes
                for tensor, velocity, gradient in zip(weights, velocities, gradients, strict=True):
                    tensor.sub_(velocity.mul_(task.momentum).add_(gradient), alpha=task.lr)
            if last[step]:
                own = test()[0]
            if workers > 1 and due[step].any():
                _average(weights, workers, due[step])
        for curve, mine, accuracy, loss in zip(curves, own, *test(), strict=True):
            curve.own.append(mine)
            curve.accuracy.append(accuracy)
            curve.loss.append(loss)
    return {(workers, k, skew): curve for (k, skew), curve in zip(settings, curves, strict=True)}


def _padded(rows, steps, size):
    """A pass as a tensor of `steps` batches, the last one filled up, and each image's share in its batch's mean."""
    filled, share = torch.zeros(steps * size, dtype=torch.long), torch.zeros(steps * size)
    filled[:len(rows)], share[:len(rows)] = rows, 1 / size
    in_the_last = len(rows) - (steps - 1) * size
    share[(steps - 1) * size:len(rows)] = 1 / in_the_last
    return filled.view(steps, size), share.view(steps, size)


def _average(weights, workers, due):
    """Where a setting is due, give its workers the mean of their weights."""
    with torch.no_grad():
        for tensor in weights:
            grouped = tensor.view(len(due), workers, -1)
            grouped.copy_(torch.where(due.view(-1, 1, 1), grouped.mean(1, keepdim=True), grouped))


def in_words(workers, every, skew):
    """What the setting is."""
    if workers == 1:
        return "1 worker: it averages with nobody, and has all the labels"
    how = "once per epoch" if every == 0 else "at every step" if every == 1 else f"every {every} steps"
    return f"{workers} workers, averaged {how}, {skew:.0%} of the images sorted by label"


def draw_trainings(ax, grid):
    """Draw all trainings of the grid in grey.

    Args:
        grid: What `train_grid` returned; it holds every combination of its workers, intervals and skews.

    Returns:
        A function of workers, every and skew that shows this training above the others. (It moves what is there: to
        draw all anew would take three times as long.)
    """
    epochs = range(1, len(next(iter(grid.values())).accuracy) + 1)
    others = {tuple(zip(epochs, curve.accuracy, strict=True)) for curve in grid.values()}
    ax.add_collection(LineCollection(sorted(others), color="#bbbbbb", linewidth=1, label="all other settings"))
    own, = ax.plot(epochs, [0] * len(epochs), "--", color="C1", label="the workers' own,\nbefore averaging")
    averaged, = ax.plot(epochs, [0] * len(epochs), "o-", color="C0", linewidth=3, label="the averaged model")
    ax.set(ylim=(0, 1), xlim=(0.9, len(epochs) + 0.1), xticks=epochs, ylabel="test accuracy",
           xlabel="epochs (passes over all images, together)")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.legend(handles=[averaged, own, ax.collections[0]], loc="upper left", bbox_to_anchor=(1, 0.75))
    ax.grid(axis="y")
    note = ax.text(1.04, 0.96, "", transform=ax.transAxes, va="top")

    def show(workers, every, skew):
        chosen, words = grid[workers, every, skew], in_words(workers, every, skew)
        averaged.set_ydata(chosen.accuracy)
        own.set_ydata(chosen.own)
        ax.set_title(words)
        rounds = f"{chosen.averagings} averaging{'s' * (chosen.averagings != 1)} per epoch"
        note.set_text(f"{chosen.accuracy[-1]:.0%} right at the end\n" + (
            rounds if workers > 1 else "“Average every” and “Label\nskew” do nothing here"))
        ax.figure.set_label(f"{words}. Test accuracy by epoch, of the averaged model: {_listed(chosen.accuracy)}; of "
                            f"the workers' own before averaging: {_listed(chosen.own)}.")

    return show


def _listed(shares):
    return ", ".join(f"{share:.0%}" for share in shares)


def convergence_explorer(grid):
    """Choose workers, sync interval and skew; see how that training went.

    Args:
        grid: What `train_grid` returned.
    """
    numbers, intervals, skews = (sorted({key[place] for key in grid}) for place in range(3))
    intervals = sorted(intervals, key=lambda every: every or float("inf"))
    wide = {"style": {"description_width": "110px"}, "layout": {"width": "460px"}}
    controls = {
        "workers": widgets.SelectionSlider(options=numbers, value=numbers[len(numbers) // 2],
                                           description="Workers", **wide),
        "every": widgets.SelectionSlider(options=[(str(every) if every else "once per epoch", every)
                                                  for every in intervals],
                                         value=intervals[-1], description="Average every", **wide),
        "skew": widgets.SelectionSlider(options=[(f"{skew:.0%}", skew) for skew in skews], value=skews[-1],
                                        description="Label skew", **wide),
    }
    figure = Figure(figsize=(9, 4.4), layout="none")
    show = draw_trainings(figure.subplots(), grid)
    figure.subplots_adjust(left=0.1, right=0.7, top=0.91, bottom=0.13)

    def draw(workers, every, skew):
        controls["every"].disabled = controls["skew"].disabled = workers == 1  # they would change nothing
        show(workers, every, skew)
        return figure

    return Explorer(controls, draw,
                    "Convergence explorer: choose the number of workers, how often they average, and how much of the "
                    "data is sorted by label; the picture shows test accuracy over epochs, from real trainings.")
