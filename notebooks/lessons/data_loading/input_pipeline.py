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
        self.options = options
        self.files = []
        digits = Digits(train=True)
        for index in range(options.batch * options.batches):
            image, label = digits[index % len(digits)]
            image = image.resize((options.pixels, options.pixels))
            file = io.BytesIO()
            image.save(file, "JPEG")
            self.files.append((file.getvalue(), label))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        began = time.perf_counter()
        batch, number = divmod(index, self.options.batch)
        if number == 0:
            milliseconds = self.options.read_ms
            if batch % 7 == 6:  # now and then a disk or a network takes its time
                milliseconds += self.options.stall_ms
            time.sleep(milliseconds / 1000)
        file, label = self.files[index]
        photo = Image.open(io.BytesIO(file))
        image = photo.rotate(index % 11 - 5, Image.Resampling.BILINEAR).resize((32, 32))
        worker = get_worker_info().id if get_worker_info() else 0
        stamp = torch.tensor([worker, began, time.perf_counter()], dtype=torch.float64)
        return torch.from_numpy(np.array(image)).unsqueeze(0) / 255, label, stamp


def epoch(loader, step):
    """Train once; return when batches were loaded and computed, in milliseconds."""
    began = time.perf_counter()

    def milliseconds(moment):
        return round((moment - began) * 1000, 2)

    loads = []
    computes = []
    for images, labels, stamps in loader:
        arrived = time.perf_counter()
        step(images, labels)
        done = time.perf_counter()
        computes.append([milliseconds(arrived), milliseconds(done)])
        workers, begins, ends = stamps.T
        worker = int(workers[0])  # it has loaded the whole batch, photo by photo
        first = begins.min().item()
        last = ends.max().item()
        loads.append([worker, milliseconds(first), milliseconds(last)])
    return {"loads": loads, "computes": computes}


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


def command_line(arguments=None):
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
    options = parser.parse_args(arguments)
    if options.batches < 1 or options.batch < 1:
        raise ValueError("--batches and --batch must be 1 or more: there is no epoch without photos")
    return options


def photos_and_step():
    """The photos that this script trains on, and a function that makes a step: of a batch's images and labels."""
    torch.set_num_threads(1)
    return Photos(command_line([])), training_step("cuda" if torch.cuda.is_available() else "cpu")


def main(options):
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.cores])
    torch.set_num_threads(1)  # the workers share the cores with this process
    photos = Photos(options)
    if options.device_ms is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        step = training_step(device)
    else:
        def step(images, labels):
            time.sleep(options.device_ms / 1000)

    for workers in options.workers:
        if workers == 0:  # then there is nobody to load ahead
            settings = {}
            prefetches = [None]
        else:
            # fork is quick, and safe: the workers touch neither CUDA nor threads
            method = "fork" if sys.platform == "linux" else None
            settings = {"multiprocessing_context": method, "persistent_workers": options.keep}
            prefetches = options.prefetch
        for prefetch in prefetches:
            loader = DataLoader(photos, batch_size=options.batch, num_workers=workers,
                                prefetch_factor=prefetch, **settings)
            for _ in range(options.epochs):
                report(workers=workers, prefetch=prefetch, **epoch(loader, step))


if __name__ == "__main__":
    main(command_line())
