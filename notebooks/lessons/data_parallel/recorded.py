"""What the DataParallel lesson shows of GPUs: what the wrapper costs on one, and what it brings on several."""

import matplotlib.pyplot as plt
import torch
from torch import nn

from helpers.experiments import experiment, free_memory, milliseconds, peak_mib


def linear_layers(width):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])


def convolutions(channels):
    return nn.Sequential(nn.Conv2d(3, channels, 3), *[nn.Conv2d(channels, channels, 3, padding=1) for _ in range(7)])


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
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).cuda()
        result[batch] = {"bare": step_milliseconds(model, x),
                         "wrapped": step_milliseconds(nn.DataParallel(model, device_ids=[0]), x)}
    return result


@wrapper_on_one_gpu.draws
def wrapper_drawn(result):
    fig, ax = plt.subplots(figsize=(7, 2.8))
    extra = {batch: 1000 * (row["wrapped"] - row["bare"]) for batch, row in result.items()}
    ax.bar(list(extra), list(extra.values()))
    ax.axhline(0, color="black", linewidth=1)
    ax.set(title="What nn.DataParallel adds on one GPU", xlabel="samples in a batch", ylabel="µs a step")
    fig.set_label("What the wrapper adds to a step: "
                  + ", ".join(f"{more:.0f} µs with {batch} samples" for batch, more in extra.items()))


@wrapper_on_one_gpu.tells
def wrapper_in_words(result):
    smallest, *_, largest = result
    low, high = result[smallest], result[largest]
    more = low["wrapped"] / low["bare"] - 1
    return (f"With {smallest} samples in a batch, a step takes **{abs(more):.0%} {'longer' if more > 0 else 'less'}** "
            f"with the wrapper than without it: {low['wrapped']:.2f} ms and {low['bare']:.2f} ms. With "
            f"{int(largest):,} samples it takes {high['wrapped']:.2f} ms and {high['bare']:.2f} ms. On one GPU the "
            "wrapper makes no replicas. It looks where the inputs and all parameters are, and calls the module.")


@experiment(gpus=2, seconds=15, small={"width": 16, "channels": 4, "samples": 8})
def speed(width=4096, channels=256, samples=256):
    """How much faster is nn.DataParallel on all GPUs than one GPU?

    Milliseconds of a training step of two models, median of 20: linear layers, which use each weight once a sample, and
    convolutions, which use it 900 times.
    """
    models = {"3 linear layers": (linear_layers(width), (samples // 4, width)),
              "8 convolutions": (convolutions(channels), (samples, 3, 32, 32))}
    result = {}
    for name, (model, shape) in models.items():
        x = torch.rand(shape, device="cuda:0")
        result[name] = {"one GPU": step_milliseconds(model.cuda(), x),
                        "DataParallel": step_milliseconds(nn.DataParallel(model), x)}
    return result | {"GPUs": torch.cuda.device_count()}


@speed.tells
def speed_in_words(result):
    rows = {name: row["one GPU"] / row["DataParallel"] for name, row in result.items() if name != "GPUs"}
    factors = ", ".join(f"{name} **{factor:.2f}×**" for name, factor in rows.items())
    return f"{result['GPUs']} GPUs by nn.DataParallel are so many times as fast as one: {factors}."


@experiment(gpus=2, seconds=10, small={"samples": 8, "classes": 50})
def memory(samples=1024, classes=50_000):
    """Which GPU needs most memory in a step of nn.DataParallel?

    Peak MiB of each: layers of 64, 1,024 and 50,000 outputs, 1,024 samples, Adam.
    """
    free_memory()
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, classes)).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.rand(samples, 64, device="cuda:0"), torch.randint(classes, (samples,), device="cuda:0")

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    step()
    others = range(1, torch.cuda.device_count())
    for device in others:
        torch.cuda.reset_peak_memory_stats(device)
    return {"GPU 0": peak_mib(step)} | {f"GPU {n}": torch.cuda.max_memory_allocated(n) / 2**20 for n in others}


@memory.tells
def memory_in_words(result):
    first, *others = result.values()
    return (f"GPU 0 held **{first / max(others):.1f} times** as much as the fullest of the others: {first:,.0f} MiB "
            f"against {max(others):,.0f} MiB. It gathers the outputs, and holds the optimizer's states.")
