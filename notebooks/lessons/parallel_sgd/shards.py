"""Shards and batches of a task, its test, and a trainer's command line."""

import argparse
import contextlib
from dataclasses import replace
from functools import lru_cache, partial

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
    rows = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    return (images[rows].unsqueeze(1).float() / 255 - task.mean) / task.std, labels[rows].long()


def labels_of(task):
    """The labels of the training images."""
    return _stored(task.dataset, train=True)[1].long()


@lru_cache(maxsize=2)
def _stored(name, train):
    """Images and labels as they are stored; torchvision, which is slow to import, only where it must."""
    if name == "MNIST":
        raw, part = download_folder() / name / "raw", "train" if train else "t10k"
        with contextlib.suppress(OSError, ValueError):  # then `load` says what to do
            return [parse_idx((raw / f"{part}-{kind}-ubyte").read_bytes())
                    for kind in ("images-idx3", "labels-idx1")]
    data = load(name, train=train)
    return data.data, data.targets


def _to_tensor(mean, std, image):
    return (torch.from_numpy(numpy.array(image)).unsqueeze(0).float() / 255 - mean) / std


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
    return [range(rank * size, (rank + 1) * size if rank < n_workers - 1 else n_samples)
            for rank in range(n_workers)]


def skewed_split(labels, n_workers, skew=0.0):
    """Shards as tensors of indices. The share `skew` of the samples, 0 to 1, is sorted by label first.

    At 0 this is `split`; at 1 every worker sees a few digits only. Raises ValueError as `split` does.
    """
    if not 0 <= skew <= 1:
        raise ValueError(f"the skew is a share from 0 to 1, not {skew}")
    count = round(skew * len(labels))
    if not len(labels):
        raise ValueError("the dataset is empty: there is nothing to split")
    by_label = labels[:count].argsort(stable=True)
    rest = torch.arange(count, len(labels))
    parts = [[part[list(shard)] for shard in split(len(part), n_workers)]
             for part in (by_label, rest) if len(part)]
    return [torch.cat(of_worker) for of_worker in zip(*parts, strict=True)]


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
    loss, right = nn.functional.cross_entropy(outputs, labels), outputs.argmax(1) == labels
    return loss.item(), right.float().mean().item()


def options(description, **more):
    """The command line of a trainer; `more` are its own options, {name: default}.

    Raises:
        ValueError: a number makes no sense; the message says which and why.
    """
    defaults = {"task": "Digits", "epochs": 3, "samples": 0, "lr": 0.0, "method": "SGD", **more}
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        optional = name in ("samples", "lr")
        parser.add_argument(f"--{name}", type=type(default), default=None if optional else default)
    chosen = parser.parse_args()
    if chosen.task not in TASKS:
        raise ValueError(f"--task is one of {', '.join(TASKS)}, not {chosen.task}")
    if chosen.method not in ("SGD", "Adam"):
        raise ValueError(f"--method is SGD or Adam, not {chosen.method}")
    for name in {"epochs", "workers", "every", "threads"} & set(defaults):
        if getattr(chosen, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, not {getattr(chosen, name)}")
    task = TASKS[chosen.task]
    chosen.task = replace(task, method=chosen.method, lr=task.lr if chosen.lr is None else chosen.lr)
    del chosen.method, chosen.lr
    if chosen.samples is not None and not 0 <= chosen.samples <= (there := len(labels_of(task))):
        raise ValueError(f"--samples must be 0 or more, not {chosen.samples}" if chosen.samples < 0 else
                         f"--samples {chosen.samples}: there are only {there}")
    return vars(chosen)
