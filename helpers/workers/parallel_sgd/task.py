"""What the trainers of lesson 02 share: the task, the shards, the order of the batches, the test, the command line."""

import argparse
import contextlib
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy
import torch
from torch import nn

from helpers.data import download_folder, load, parse_idx

#: Seconds that nobody waits for longer: at a barrier, for a collective, for a child.
LIMIT = 600


@dataclass(frozen=True)
class Task:
    """A dataset, a network, and the settings of one training."""

    dataset: str
    batch: int
    lr: float
    momentum: float
    mean: float
    std: float
    """Of the pixels, from 0 to 1."""

    def model(self):
        """The network, the same weights in every process.

        S4 seeds once and makes four local models before the global one; so the fifth is where its training begins.
        """
        torch.manual_seed(1)
        return [self._network() for _ in range(5)][-1]

    def _network(self):
        if self.dataset == "Digits":
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        return nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    def images(self, train):
        """The dataset as it is stored: PIL images and labels, one by one."""
        return load(self.dataset, train=train)

    def transform(self):
        """What makes a tensor of one PIL image."""
        if self.dataset == "Digits":
            return partial(_to_tensor, self.mean, self.std)
        from torchvision import transforms

        return transforms.Compose([transforms.ToTensor(), transforms.Normalize((self.mean,), (self.std,))])

    def tensors(self, train, rows=slice(None)):
        """The same images, or only `rows` of them, prepared all at once: float32 [N, 1, height, width], and labels."""
        images, labels = _stored(self.dataset, train)
        return (images[rows].unsqueeze(1).float() / 255 - self.mean) / self.std, labels[rows].long()

    def labels(self):
        """Of the training images."""
        return _stored(self.dataset, train=True)[1].long()


#: S4's settings are those of MNIST. The digits that ship are few, so their batches are smaller and their steps larger.
TASKS = {
    "Digits": Task("Digits", batch=8, lr=0.05, momentum=0.5, mean=0.31, std=0.38),
    "MNIST": Task("MNIST", batch=64, lr=0.01, momentum=0.5, mean=0.1307, std=0.3081),
}


@lru_cache(maxsize=2)
def _stored(name, train):
    """Images and labels as they are stored. torchvision, whose import takes longer than reading, only where it must."""
    if name == "MNIST":
        raw, part = download_folder() / name / "raw", "train" if train else "t10k"
        with contextlib.suppress(OSError, ValueError):  # then `load` says what to do
            return [parse_idx((raw / f"{part}-{kind}-ubyte").read_bytes()) for kind in ("images-idx3", "labels-idx1")]
    data = load(name, train=train)
    return data.data, data.targets


def _to_tensor(mean, std, image):
    return (torch.from_numpy(numpy.array(image)).unsqueeze(0).float() / 255 - mean) / std


def split(n_samples, n_workers, shard_size=None):
    """Neighbouring samples for each worker, as ranges; what is left over goes to the last one.

    shard_size: every shard's length, where not all samples are to be used.

    Raises ValueError where there is nothing to split, nobody to split it for, or less than the shards hold together.
    """
    if n_workers < 1:
        raise ValueError(f"the data is split among 1 worker or more, not {n_workers}")
    if n_samples < 1:
        raise ValueError("the dataset is empty: there is nothing to split")
    size = n_samples // n_workers if shard_size is None else shard_size
    if size < 1 or size * n_workers > n_samples:
        size = max(size, 1)
        raise ValueError(f"{n_workers} shards of {size} or more need {size * n_workers} samples; there are {n_samples}")
    end = n_samples if shard_size is None else size * n_workers
    return [range(rank * size, (rank + 1) * size if rank < n_workers - 1 else end) for rank in range(n_workers)]


def skewed_split(labels, n_workers, skew=0.0):
    """Shards as tensors of indices. The share `skew` of the samples, 0 to 1, is sorted by label before it is split.

    At 0 this is `split`; at 1 every worker sees a few digits only. Raises ValueError as `split` does.
    """
    if not 0 <= skew <= 1:
        raise ValueError(f"the skew is a share from 0 to 1, not {skew}")
    count = round(skew * len(labels))
    if not len(labels):
        raise ValueError("the dataset is empty: there is nothing to split")
    by_label = labels[:count].argsort(stable=True)
    rest = torch.arange(count, len(labels))
    parts = [[part[list(shard)] for shard in split(len(part), n_workers)] for part in (by_label, rest) if len(part)]
    return [torch.cat(of_worker) for of_worker in zip(*parts, strict=True)]


def seed(epoch, rank):
    """Where the random numbers of one pass begin; in the first epoch as in S4's program."""
    return 1000 * epoch + 1 + rank


def batches(n_samples, size, epoch, rank):
    """The batches of one pass, as tensors of indices: shuffled, and the same whoever asks."""
    order = torch.Generator().manual_seed(seed(epoch, rank))
    return torch.randperm(n_samples, generator=order).split(size)


def tested(model, images, labels):
    """The sum of the losses and the number of right answers, as a tensor of two: such sums can be added over ranks."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in images.split(1000)])
    model.train()
    loss = nn.functional.cross_entropy(outputs, labels, reduction="sum")
    return torch.stack([loss, (outputs.argmax(1) == labels).sum().float()])


def options(description, **more):
    """The command line of a trainer; `more` are its own options, {name: default}.

    Raises:
        ValueError: a number makes no sense; the message says which and why.
    """
    defaults = {"task": "Digits", "epochs": 3, "samples": 0, **more}
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=None if name == "samples" else default)
    chosen = parser.parse_args()
    if chosen.task not in TASKS:
        raise ValueError(f"--task is one of {', '.join(TASKS)}, not {chosen.task}")
    for name in {"epochs", "workers", "every", "threads"} & set(defaults):
        if getattr(chosen, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, not {getattr(chosen, name)}")
    chosen.task = TASKS[chosen.task]
    if chosen.samples is not None and not 0 <= chosen.samples <= (there := len(chosen.task.labels())):
        raise ValueError(f"--samples must be 0 or more, not {chosen.samples}" if chosen.samples < 0 else
                         f"--samples {chosen.samples}: there are only {there}")
    return chosen
