"""The datasets that lessons use: digits that ship with the course, and larger sets through torchvision.

    from helpers.data import Digits, load
    digits = Digits(train=True)                        # ships with the course: no network, no torchvision
    mnist = load("MNIST", train=True, download=True)   # torchvision's own class, downloaded once

The larger sets live in a folder: the argument `folder`, else the environment variable COURSE_DATA, else the
user's cache. Whatever goes wrong with files or network is a DataError, whose text says what to do.
"""

import os
import socket
import struct
from pathlib import Path

import torch
from torch.utils.data import Dataset

from helpers.places import CACHE, SHIPPED
from helpers.records import DataError, shipped

FOLDER_VARIABLE = "COURSE_DATA"
NAMES = ("Digits", "MNIST", "FashionMNIST", "CIFAR10")
NETWORK_SECONDS = 30  # a server that is silent for so long counts as no network; torchvision has no limit


class Digits(Dataset):
    """1,797 grey images of handwritten digits, 8×8 pixels: 1,437 for training, 360 for testing.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, CC BY 4.0 (what was
    done to it: data/digits/README.md). Used like torchvision's datasets: `digits[i]` is a PIL image of mode
    "L" and an int, or what `transform` and `target_transform` make of them.

    root: the folder that holds `digits/`; None for the copy that ships with the course.
    data: uint8 tensor [N, 8, 8], 0 (paper) to 255 (ink). The original counts 0 to 16; 16 became 255.
    targets: int64 tensor [N], 0 to 9.
    classes: their ten names.
    Raises DataError where a file is missing or was cut off.
    """

    classes = ("0 - zero", "1 - one", "2 - two", "3 - three", "4 - four")
    classes += ("5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine")

    def __init__(self, root=None, train=True, transform=None, target_transform=None):
        folder = (SHIPPED if root is None else Path(root).expanduser()) / "digits"
        self.train, self.transform, self.target_transform = train, transform, target_transform
        part = "train" if train else "t10k"
        self.data = shipped(folder / f"{part}-images-idx3-ubyte", parse_idx)
        self.targets = shipped(folder / f"{part}-labels-idx1-ubyte", parse_idx).long()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        from PIL import Image

        image, label = Image.fromarray(self.data[index].numpy()), int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)

    def tensors(self):
        """All of it at once: images as float32 [N, 1, 8, 8] from 0 to 1, and labels as int64 [N]."""
        return self.data.unsqueeze(1).float() / 255, self.targets

    def __repr__(self):
        return f"Digits: {len(self)} images of 8×8 for {'training' if self.train else 'testing'}"


def load(name, train=True, folder=None, download=False, transform=None):
    """One of the datasets in NAMES, as an object of torchvision's class of that name (or Digits).

    train: the training part, else the test part. Images: Digits 8×8, MNIST and FashionMNIST 28×28, all grey;
    CIFAR10 32×32 in colour. 10 classes each. `transform` gets the PIL image.
    folder: where the files are, in torchvision's layout; by default, what `download_folder` says. Digits ship
    with the course: for them only the argument counts.
    download: have torchvision fetch what is missing, with its progress bar (MNIST 12 MB, FashionMNIST 31 MB,
    CIFAR10 170 MB). Call it before you launch ranks, not in each of them. Archives that already lie where
    torchvision puts them are unpacked without network.
    Raises DataError: an unknown name, missing or damaged files, no network, a folder that cannot be written.
    """
    if name not in NAMES:
        raise DataError(f"There is no dataset {name!r} here. Choose one of: {', '.join(NAMES)}.")
    if name == "Digits":
        return Digits(folder, train=train, transform=transform)
    from torchvision import datasets

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    try:
        folder = download_folder(folder)
        return getattr(datasets, name)(folder, train=train, download=download, transform=transform)
    except Exception as error:  # files, archives, the network: torchvision lets all their errors through
        raise DataError(
            f"{name} cannot be read from {folder}: {str(error).strip() or type(error).__name__}\n"
            f"To download it: load({name!r}, download=True); if that fails, look at the network, the space "
            "on the disk and the right to write there. If it was cut off or is damaged, delete it there "
            "first. If you have it elsewhere, or copy it from another machine: "
            f"set {FOLDER_VARIABLE} or pass folder=…. Digits needs no download."
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def download_folder(folder=None):
    """Where downloads lie: `folder`, else the one that COURSE_DATA names, else the user's cache."""
    return Path(folder or os.environ.get(FOLDER_VARIABLE) or CACHE).expanduser()


def parse_idx(content):
    """The uint8 tensor in an IDX file's bytes: the format of MNIST. Raises ValueError: it was cut off."""
    try:
        dimensions = content[3]
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)[4 + 4 * dimensions :].view(shape)
    except (IndexError, struct.error, RuntimeError) as error:
        raise ValueError(f"it is no whole IDX file ({error})") from None
