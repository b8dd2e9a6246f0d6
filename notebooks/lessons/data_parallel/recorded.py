"""What the DataParallel lesson shows from a machine with GPUs."""

import statistics
import time

import torch
from torch import nn

from helpers.records import experiment


@experiment(gpus=2)
def speed():
    """Milliseconds of a training step on one GPU, and on all by nn.DataParallel: two models, median of 20."""

    def step_ms(model, x):
        optimizer, times = torch.optim.SGD(model.parameters(), lr=1e-3), []
        for _ in range(23):  # three to warm up
            began = time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
            times.append(1000 * (time.perf_counter() - began))
        return round(statistics.median(times[3:]), 2)

    def linear():
        return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(3)])

    def convolutions():
        return nn.Sequential(nn.Conv2d(3, 256, 3), *[nn.Conv2d(256, 256, 3, padding=1) for _ in range(7)])

    cases = {
        "3 linear layers of 4,096, each weight used once a sample, 64 samples": (linear, (64, 4096)),
        "8 convolutions of 256 channels, each weight used 900 times, 256 images":
            (convolutions, (256, 3, 32, 32))}
    result = {}
    for name, (make, shape) in cases.items():
        x = torch.rand(shape, device="cuda:0")
        result[name] = {"1 GPU": step_ms(make().cuda(), x),
                        f"{torch.cuda.device_count()} GPUs": step_ms(nn.DataParallel(make().cuda()), x)}
    return result


@experiment(gpus=2)
def memory():
    """Peak MiB on each GPU in a step of nn.DataParallel: layers 64→1,024→50,000, 1,024 samples, Adam."""
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 50_000)).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.rand(1024, 64, device="cuda:0"), torch.randint(50_000, (1024,), device="cuda:0")
    devices = range(torch.cuda.device_count())
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return {f"GPU {device}": round(torch.cuda.max_memory_allocated(device) / 2**20) for device in devices}
