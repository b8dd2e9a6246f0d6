"""What the DataParallel lesson shows of GPUs: what the wrapper costs on one, and what it brings on several."""

import matplotlib.pyplot as plt
import torch
from torch import nn

from helpers.experiments import experiment, free_memory, milliseconds, peak_mib


def linear_layers(number, width):
    layers = [nn.Linear(width, width) for _ in range(number)]
    return nn.Sequential(*layers)


def convolutions(channels):
    layers = [nn.Conv2d(3, channels, 3)]
    for _ in range(7):
        layers.append(nn.Conv2d(channels, channels, 3, padding=1))
    return nn.Sequential(*layers)


def step_milliseconds(model, x):
    """The median time of a training step with SGD. Its events are on device 0, which waits for all others."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return milliseconds(step)


@experiment(gpus=1, seconds=3, small={"width": 32, "batches": (4, 8)})
def wrapper_on_one_gpu(width=2048, batches=(32, 512, 8192)):
    """What does nn.DataParallel cost where it has only one GPU?

    A training step of eight layers, with the wrapper and without it, at three batch sizes: median of 20.
    """
    result = {}
    for batch in batches:
        x = torch.rand(batch, width, device="cuda")
        model = linear_layers(8, width).cuda()
        bare = step_milliseconds(model, x)
        wrapped = step_milliseconds(nn.DataParallel(model, device_ids=[0]), x)
        result[batch] = {"bare": bare, "wrapped": wrapped}
    return result


@wrapper_on_one_gpu.draws
def wrapper_drawn(result):
    figure, ax = plt.subplots(figsize=(7, 2.8))
    extra = {}  # µs that the wrapper adds, by batch
    for batch, row in result.items():
        extra[batch] = 1000 * (row["wrapped"] - row["bare"])
    ax.bar(list(extra), list(extra.values()))
    ax.axhline(0, color="black", linewidth=1)
    ax.set(title="What nn.DataParallel adds on one GPU", xlabel="samples in a batch", ylabel="µs a step")
    labels = [f"{more:.0f} µs with {batch} samples" for batch, more in extra.items()]
    figure.set_label("What the wrapper adds to a step: " + ", ".join(labels))


@wrapper_on_one_gpu.tells
def wrapper_in_words(result):
    smallest, *_, largest = result
    few = result[smallest]
    many = result[largest]
    more = few["wrapped"] / few["bare"] - 1
    longer = "longer" if more > 0 else "less"
    return (
        f"With {smallest} samples in a batch, a step takes **{abs(more):.0%} {longer}** "
        f"with the wrapper than without it: {few['wrapped']:.2f} ms and {few['bare']:.2f} ms. "
        f"With {int(largest):,} samples it takes {many['wrapped']:.2f} ms and {many['bare']:.2f} ms. "
        "On one GPU the wrapper makes no replicas. "
        "It looks where the inputs and all parameters are, and calls the module."
    )


@experiment(gpus=2, seconds=15, small={"width": 16, "channels": 4, "samples": 8})
def speed(width=4096, channels=256, samples=256):
    """How much faster is nn.DataParallel on all GPUs than one GPU?

    Milliseconds of a training step of two models, median of 20: linear layers, which use each weight once a sample, and
    convolutions, which use it 900 times.
    """
    models = {
        "3 linear layers": (linear_layers(3, width), (samples // 4, width)),
        "8 convolutions": (convolutions(channels), (samples, 3, 32, 32)),
    }
    result = {}
    for name, (model, shape) in models.items():
        x = torch.rand(shape, device="cuda:0")
        on_one = step_milliseconds(model.cuda(), x)
        on_all = step_milliseconds(nn.DataParallel(model), x)
        result[name] = {"one GPU": on_one, "DataParallel": on_all}
    return {**result, "GPUs": torch.cuda.device_count()}


@speed.tells
def speed_in_words(result):
    factors = []
    for name, row in result.items():
        if name != "GPUs":
            factor = row["one GPU"] / row["DataParallel"]
            factors.append(f"{name} **{factor:.2f}×**")
    return f"{result['GPUs']} GPUs by nn.DataParallel are so many times as fast as one: {', '.join(factors)}."


@experiment(gpus=2, seconds=10, small={"samples": 8, "classes": 50})
def memory(samples=1024, classes=50_000):
    """Which GPU needs most memory in a step of nn.DataParallel?

    Peak MiB of each: 64 inputs, layers of 1,024 and 50,000 outputs, 1,024 samples, Adam.
    """
    free_memory()
    layers = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, classes))
    model = nn.DataParallel(layers.cuda())
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.rand(samples, 64, device="cuda:0")
    labels = torch.randint(classes, (samples,), device="cuda:0")

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    step()  # makes the optimizer's states
    others = range(1, torch.cuda.device_count())
    for device in others:
        torch.cuda.reset_peak_memory_stats(device)
    peaks = {"GPU 0": peak_mib(step)}
    for device in others:  # they take part in GPU 0's step
        peaks[f"GPU {device}"] = torch.cuda.max_memory_allocated(device) / 2**20
    return peaks


@memory.tells
def memory_in_words(result):
    first, *others = result.values()
    fullest = max(others)
    return (
        f"GPU 0 held **{first / fullest:.1f} times** as much as the fullest of the others: "
        f"{first:,.0f} MiB against {fullest:,.0f} MiB. "
        "It gathers the outputs, and holds the optimizer's states."
    )
