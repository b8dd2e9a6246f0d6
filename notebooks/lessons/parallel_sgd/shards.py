"""Shards and batches of a task, its test, and a trainer's command line."""

import argparse
import contextlib
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy
import torch
from torch import nn

from helpers.data import download_folder, load, parse_idx
from lessons.parallel_sgd.task import TASKS

#: The most seconds to wait at a barrier, for a collective, or for a child.
LIMIT = 600


def transform(task):
    """What makes a tensor of one PIL image."""
    if task.dataset == "Digits":
        return partial(_to_tensor, task.mean, task.std)
    from torchvision import transforms

    return transforms.Compose([transforms.ToTensor(), transforms.Normalize((task.mean,), (task.std,))])


def tensors(task, train=True, rows=slice(None)):
    """All images, or only `rows` of them, prepared at once: float32 [N, 1, height, width], and labels."""
    images, labels = _stored(task.dataset, train)
    if isinstance(rows, range):
        rows = slice(rows.start, rows.stop)
    pixels = images[rows].unsqueeze(1).float() / 255
    return (pixels - task.mean) / task.std, labels[rows].long()


def labels_of(task):
    """The labels of the training images."""
    _, labels = _stored(task.dataset, train=True)
    return labels.long()


@lru_cache(maxsize=2)
def _stored(name, train):
    """Images and labels as they are stored; torchvision, which is slow to import, only where it must."""
    if name == "MNIST":
        part = "train" if train else "t10k"
        files = download_folder() / name / "raw" / part
        with contextlib.suppress(OSError, ValueError):  # then `load` says what to do
            images = parse_idx(Path(f"{files}-images-idx3-ubyte").read_bytes())
            labels = parse_idx(Path(f"{files}-labels-idx1-ubyte").read_bytes())
            return images, labels
    data = load(name, train=train)
    return data.data, data.targets


def _to_tensor(mean, std, image):
    pixels = torch.from_numpy(numpy.array(image)).unsqueeze(0).float() / 255
    return (pixels - mean) / std


def split(n_samples, n_workers):
    """Neighbouring samples for each worker, as ranges; what is left over goes to the last one.

    Raises ValueError where there is no sample, no worker, or less than a sample for each worker.
    """
    if n_workers < 1:
        raise ValueError(f"the data is split among 1 worker or more, not {n_workers}")
    if n_samples < 1:
        raise ValueError("the dataset is empty: there is nothing to split")
    size = n_samples // n_workers
    if size < 1:
        raise ValueError(f"{n_workers} shards of 1 or more need {n_workers} samples; there are {n_samples}")
    shards = [range(rank * size, (rank + 1) * size) for rank in range(n_workers)]
    shards[-1] = range(shards[-1].start, n_samples)
    return shards


def skewed_split(labels, n_workers, skew=0.0):
    """Shards as tensors of indices. The share `skew` of the samples, 0 to 1, is sorted by label first.

    At 0 this is `split`; at 1 every worker sees a few digits only. Raises ValueError as `split` does.
    """
    if not 0 <= skew <= 1:
        raise ValueError(f"the skew is a share from 0 to 1, not {skew}")
    if not len(labels):
        raise ValueError("the dataset is empty: there is nothing to split")
    count = round(skew * len(labels))
    by_label = labels[:count].argsort(stable=True)
    mixed = torch.arange(count, len(labels))
    shards = [[] for _ in range(n_workers)]
    for indices in (by_label, mixed):
        if len(indices):
            for shard, rows in zip(shards, split(len(indices), n_workers), strict=True):
                shard.append(indices[list(rows)])
    return [torch.cat(shard) for shard in shards]


def seed(epoch, rank):
    """Where the random numbers of one pass begin; in the first epoch as in the article's program."""
    return 1000 * epoch + 1 + rank


def batches(n_samples, size, epoch, rank):
    """The batches of one pass, as tensors of indices: shuffled, and the same whoever asks."""
    order = torch.Generator().manual_seed(seed(epoch, rank))
    return torch.randperm(n_samples, generator=order).split(size)


def tested(model, images, labels):
    """The mean loss and the share of right answers."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in images.split(1000)])
    model.train()
    loss = nn.functional.cross_entropy(outputs, labels)
    right = outputs.argmax(1) == labels
    return loss.item(), right.float().mean().item()


def options(description, **more):
    """The command line of a trainer; `more` are its own options, {name: default}.

    Raises:
        ValueError: a number makes no sense; the message says which and why.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", default="Digits")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, help="of the training set; all, if this is left out")
    parser.add_argument("--lr", type=float, help="the task's own, if this is left out")
    parser.add_argument("--method", default="SGD")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    chosen = parser.parse_args()
    if chosen.task not in TASKS:
        raise ValueError(f"--task is one of {', '.join(TASKS)}, not {chosen.task}")
    if chosen.method not in ("SGD", "Adam"):
        raise ValueError(f"--method is SGD or Adam, not {chosen.method}")
    for name in ("epochs", "workers", "every", "threads"):
        number = getattr(chosen, name, None)  # not every trainer has all of these
        if number is not None and number < 1:
            raise ValueError(f"--{name} must be 1 or more, not {number}")
    task = replace(TASKS[chosen.task], method=chosen.method)
    if chosen.lr is not None:
        task = replace(task, lr=chosen.lr)
    chosen.task = task
    del chosen.method, chosen.lr
    if chosen.samples is not None:
        if chosen.samples < 0:
            raise ValueError(f"--samples must be 0 or more, not {chosen.samples}")
        available = len(labels_of(task))
        if chosen.samples > available:
            raise ValueError(f"--samples {chosen.samples}: there are only {available}")
    return vars(chosen)
