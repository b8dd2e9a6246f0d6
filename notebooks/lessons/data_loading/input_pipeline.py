"""Train from JPEG photos; note when each batch was loaded, and when the device worked on it.

    launch("input_pipeline.py", nprocs=1, args=["--workers", "0", "2"])
"""

import argparse
import io
import os
import sys
import time
import warnings

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from helpers import report
from helpers.data import Digits

# More workers than cores: we want to see what that does.
warnings.filterwarnings("ignore", message="This DataLoader will create")


class Photos(Dataset):
    """Digits as JPEG files: wait for a disk (a sleep per batch), decode, turn."""

    def __init__(self, options):
        self.options, self.files, digits = options, [], Digits(train=True)
        for index in range(options.batch * options.batches):
            image, label = digits[index % len(digits)]
            image = image.resize((options.pixels, options.pixels))
            image.save(file := io.BytesIO(), "JPEG")
            self.files.append((file.getvalue(), label))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        began = time.perf_counter()
        batch, number = divmod(index, self.options.batch)
        if number == 0:
            stalls = batch % 7 == 6  # now and then a disk or a network takes its time
            time.sleep((self.options.read_ms + stalls * self.options.stall_ms) / 1000)
        file, label = self.files[index]
        photo = Image.open(io.BytesIO(file))
        image = photo.rotate(index % 11 - 5, Image.Resampling.BILINEAR).resize((32, 32))
        worker = get_worker_info().id if get_worker_info() else 0
        stamp = torch.tensor([worker, began, time.perf_counter()], dtype=torch.float64)
        return torch.from_numpy(np.array(image)).unsqueeze(0) / 255, label, stamp


def epoch(loader, step):
    """Train once; return when batches were loaded and computed, in milliseconds."""
    began, loads, computes = time.perf_counter(), [], []
    for images, labels, stamps in loader:
        arrived = time.perf_counter()
        step(images, labels)
        computes.append([arrived, time.perf_counter()])
        workers, begins, ends = stamps.T
        loads.append([workers[0].item(), begins.min().item(), ends.max().item()])

    def ms(times):
        return [round((at - began) * 1000, 2) for at in times]

    loads = [[int(worker), *ms(times)] for worker, *times in loads]
    return {"loads": loads, "computes": [ms(times) for times in computes]}


def training_step(device):
    """One step of SGD on a small network."""
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
                          nn.Flatten(), nn.Linear(16 * 28 * 28, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(images, labels):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # wait for the device

    step(torch.zeros(8, 1, 32, 32), torch.zeros(8, dtype=torch.long))  # the slow first step
    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--prefetch", type=int, nargs="+", default=[2])
    parser.add_argument("--epochs", type=int, default=1, help="for each setting")
    parser.add_argument("--keep", action="store_true", help="keep the workers from one epoch to the next")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--batch", type=int, default=8, help="photos in a batch")
    parser.add_argument("--pixels", type=int, default=384, help="width and height of a photo")
    parser.add_argument("--read-ms", type=float, default=0, help="to wait for the disk, per batch")
    parser.add_argument("--stall-ms", type=float, default=0, help="to wait longer, for every seventh batch")
    parser.add_argument("--device-ms", type=float, help="to sleep in each step, in place of computing")
    parser.add_argument("--cores", type=int, help="use no more than these (where the system can be told so)")
    options = parser.parse_args()
    if options.batches < 1 or options.batch < 1:
        raise ValueError("--batches and --batch must be 1 or more: there is no epoch without photos")

    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.cores])
    torch.set_num_threads(1)  # the workers share the cores with this process
    photos = Photos(options)
    if options.device_ms is None:
        step = training_step("cuda" if torch.cuda.is_available() else "cpu")
    else:
        step = lambda images, labels: time.sleep(options.device_ms / 1000)  # noqa: E731
    for workers in options.workers:
        for prefetch in options.prefetch if workers else [None]:
            # fork is quick, and safe: the workers touch neither CUDA nor threads
            method = "fork" if workers and sys.platform == "linux" else None
            loader = DataLoader(photos, batch_size=options.batch, num_workers=workers,
                                prefetch_factor=prefetch, multiprocessing_context=method,
                                persistent_workers=options.keep and workers > 0)
            for _ in range(options.epochs):
                report(workers=workers, prefetch=prefetch, **epoch(loader, step))
