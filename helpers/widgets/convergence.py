"""The convergence explorer: workers, sync interval and label skew, from trainings that were really run."""

import html
from dataclasses import dataclass, field

import ipywidgets as widgets

from helpers.widgets.explorer import Explorer
from helpers.widgets.svg import COLOURS, svg

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
    import torch

    grid, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are small: several threads would only wait for each other
    try:
        for number in workers:
            grid |= _trained(number, [(k, skew) for skew in skews for k in every], epochs)
    finally:
        torch.set_num_threads(threads)
    return grid


def _trained(workers, settings, epochs):
    """{(workers, every, skew): Curve} of these settings."""
    if workers == 1:  # there is nobody to average with, and nothing to split: one training stands for all
        (alone,) = _train(1, [(0, 0.0)], epochs).values()
        return {(1, k, skew): alone for k, skew in settings}
    return _train(workers, settings, epochs)


def _train(workers, settings, epochs):
    """All settings (every, skew) of one number of workers, side by side."""
    import torch
    from torch import nn

    from helpers.parallel_sgd import TASKS, batches, skewed_split

    task = TASKS["Digits"]
    images, labels = task.tensors(train=True)
    test_images, test_labels = task.tensors(train=False)
    images, test_images = images.flatten(1), test_images.flatten(1)
    splits = {skew: skewed_split(labels, workers, skew) for _, skew in settings}
    shards = [shard for _, skew in settings for shard in splits[skew]]
    per_epoch = -(-min(map(len, shards)) // task.batch)
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
    import torch

    filled, share = torch.zeros(steps * size, dtype=torch.long), torch.zeros(steps * size)
    filled[:len(rows)], share[:len(rows)] = rows, 1 / size
    in_the_last = len(rows) - (steps - 1) * size
    share[(steps - 1) * size:len(rows)] = 1 / in_the_last
    return filled.view(steps, size), share.view(steps, size)


def _average(weights, workers, due):
    """Where a setting is due, give its workers the mean of their weights."""
    import torch

    with torch.no_grad():
        for tensor in weights:
            grouped = tensor.view(len(due), workers, -1)
            grouped.copy_(torch.where(due.view(-1, 1, 1), grouped.mean(1, keepdim=True), grouped))


def in_words(workers, every, skew, curve):
    """What the setting is, and how it ended, in a sentence."""
    how = "once per epoch" if every == 0 else "at every step" if every == 1 else f"every {every} steps"
    who = f"{workers} workers, averaged {how}, {skew:.0%} of the images sorted by label" if workers > 1 else "1 worker"
    return f"{who}: {curve.accuracy[-1]:.0%} right after {len(curve.accuracy)} epochs"


def draw(grid, workers, every, skew):
    """The chosen training above all others of the grid, as SVG.

    Args:
        grid: What `train_grid` returned; it holds every combination of the three choices.
    """
    chosen = grid[workers, every, skew]
    epochs = len(chosen.accuracy)

    def line(values, look):
        points = " ".join(f"{90 + 560 * number / epochs:.0f},{400 - 360 * value:.0f}"
                          for number, value in enumerate(values, start=1))
        return f'<polyline points="{points}" fill="none" {look}/>'

    title = in_words(workers, every, skew, chosen)
    parts = [f'<text x="20" y="28" font-size="18" font-weight="bold">{html.escape(title)}</text>',
             '<path d="M90 40V400H660" fill="none" stroke="#333"/>']
    for percent in (0, 25, 50, 75, 100):
        y = 400 - 3.6 * percent
        parts.append(f'<text x="80" y="{y + 6:.0f}" text-anchor="end">{percent} %</text>'
                     f'<path d="M90 {y:.0f}H660" stroke="#ddd"/>')
    parts += [f'<text x="{90 + 560 * number / epochs:.0f}" y="424" text-anchor="middle">{number}</text>'
              for number in range(1, epochs + 1)]
    parts.append('<text x="375" y="450" text-anchor="middle">epochs (passes over all images, together)</text>')
    parts += [line(curve.accuracy, 'stroke="#bbb"') for curve in grid.values()]
    dashes = f'stroke="{COLOURS[1]}" stroke-width="3" stroke-dasharray="8 6"'
    parts += [line(chosen.own, dashes), line(chosen.accuracy, f'stroke="{COLOURS[0]}" stroke-width="4"')]
    for number, (look, words) in enumerate([
            (f'stroke="{COLOURS[0]}" stroke-width="4"', "the averaged model"), (dashes, "the workers' own,"),
            ('stroke="#bbb" stroke-width="2"', "all other settings")]):
        y = 200 + 56 * number
        parts.append(f'<path d="M680 {y - 5}H720" {look}/><text x="730" y="{y}">{words}</text>')
    parts.append('<text x="730" y="276">before averaging</text>')
    rounds = chosen.averagings if workers > 1 else 0
    parts.append(f'<text x="680" y="90">per epoch:</text><text x="680" y="122" font-size="26" font-weight="bold">'
                 f'{rounds}</text><text x="680" y="146">averaging{"s" * (rounds != 1)}</text>')
    return svg(920, 466, parts, title)


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
    return Explorer(controls, lambda **values: draw(grid, **values),
                    "Convergence explorer: choose the number of workers, how often they average, and how much of the "
                    "data is sorted by label; the picture shows test accuracy over epochs, from real trainings.")


def _rounded(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def draw_trainers(trainers):
    """Test loss of several trainers, over samples on the left and over seconds on the right, as SVG.

    Args:
        trainers: {name: rows}, each row with "samples", "seconds" and "loss", as the sgd_*.py workers report them.
    """
    high = max(row["loss"] for rows in trainers.values() for row in rows) * 1.05
    parts = []
    for panel, what in enumerate(("samples", "seconds")):
        left, most = 70 + 440 * panel, max(row[what] for rows in trainers.values() for row in rows)
        parts.append(f'<path d="M{left} 30V330H{left + 390}" fill="none" stroke="#333"/>'
                     f'<text x="{left + 195}" y="358" text-anchor="middle">{what} (up to {_rounded(most)})</text>'
                     f'<text x="{left + 8}" y="24">test loss</text>'
                     f'<text x="{left - 8}" y="40" text-anchor="end">{high:.1f}</text>'
                     f'<text x="{left - 8}" y="334" text-anchor="end">0</text>')
        for number, rows in enumerate(trainers.values()):
            points = [(left + 390 * row[what] / most, 330 - 300 * row["loss"] / high)
                      for row in rows]
            line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[number]}" stroke-width="3" '
                         f'stroke-dasharray="{("none", "8 4", "3 3", "12 4 3 4", "1 5")[number % 5]}"/>')
            parts += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{COLOURS[number]}"/>' for x, y in points]
    for number, name in enumerate(trainers):
        x, y = 70 + 300 * (number % 3), 392 + 26 * (number // 3)
        parts.append(f'<text x="{x}" y="{y}" fill="{COLOURS[number]}" font-weight="bold">● {html.escape(name)}</text>')
    return svg(920, 410 + 26 * ((len(trainers) - 1) // 3), parts,
               f"Test loss over samples and over seconds of {', '.join(trainers)}")
