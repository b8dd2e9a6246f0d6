"""One process per device: each trains a copy of the model on its share of the digits; the parent averages.

    launch("one_process_per_device.py", nprocs=1), or python one_process_per_device.py
"""

import io

import torch
import torch.multiprocessing as mp
from torch import nn

from helpers.data import Digits


def build_model():
    """A linear classifier; every process that builds it begins with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def train(rank, devices, queue):
    """Train a copy on this device's share and send its weights as bytes, which do not need this process."""
    torch.set_num_threads(1)  # the processes share the cores
    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)  # from here on, "cuda" means this GPU
    images, labels = Digits(train=True).tensors()
    images = images[rank::len(devices)].to(device)
    labels = labels[rank::len(devices)].to(device)
    model = build_model().to(device)  # a copy of its own, in its device's memory
    for _ in range(100):  # SGD by hand: a torch optimizer would import torch._dynamo in each process
        nn.functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
                parameter.grad = None
    buffer = io.BytesIO()
    torch.save(model.cpu().state_dict(), buffer)
    queue.put((rank, len(images), buffer.getvalue()))


def accuracy(model):
    """Share of the test digits that the model reads correctly."""
    images, labels = Digits(train=False).tensors()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main():
    """Start the processes, collect their weights, and average them."""
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if len(devices) < 2:
        devices = ["cpu", "cpu"]  # two stand-ins
    model = build_model()
    print(f"before training: {accuracy(model):.0%} right")
    queue = mp.get_context("spawn").Queue()
    processes = mp.spawn(train, args=(devices, queue), nprocs=len(devices), join=False)
    results = []
    ended = False
    while not ended:
        ended = processes.join(0.1)  # raises here what a child has raised
        while not queue.empty():  # a child that has put more than a pipe holds cannot end before
            results.append(queue.get())
    states = []
    for rank, images, buffer in sorted(results):
        state = torch.load(io.BytesIO(buffer))
        states.append(state)
        model.load_state_dict(state)
        print(f"process {rank} on {devices[rank]}: {images} images, {accuracy(model):.0%} right")
    means = {}
    for name in states[0]:
        means[name] = torch.stack([state[name] for state in states]).mean(0)
    model.load_state_dict(means)
    print(f"the average of these models: {accuracy(model):.0%} right")


if __name__ == "__main__":
    main()
