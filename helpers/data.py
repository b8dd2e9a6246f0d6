"""The datasets that lessons use: digits that ship with the course, and larger sets through torchvision.

    from helpers.data import Digits, load
    digits = Digits(train=True)                        # ships with the course: no network, no torchvision
    mnist = load("MNIST", train=True, download=True)   # torchvision's own class, downloaded once

The larger sets live in a folder: the argument `folder`, else the environment variable COURSE_DATA, else the project's
`data/`. Whatever goes wrong with files or network is a DataError, whose text says what to do.
"""

import http.client
import os
import pickle
import shutil
import socket
import struct
import tarfile
import tempfile
import zlib
from pathlib import Path

import torch
from torch.utils.data import Dataset

from helpers.records import DataError, shipped

PROJECT_DATA = Path(__file__).resolve().parents[1] / "data"
FOLDER_VARIABLE = "COURSE_DATA"
NAMES = ("Digits", "MNIST", "FashionMNIST", "CIFAR10")
BROKEN = (OSError, RuntimeError, ValueError, EOFError)  # what torchvision raises for files and connections that fail
NETWORK_SECONDS = 30  # a server that stays silent for so long counts as no network; torchvision would wait for ever


class Digits(Dataset):
    """1,797 grey images of handwritten digits, 8×8 pixels: 1,437 for training, 360 for testing.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, CC BY 4.0 (what was done to it:
    data/digits/README.md). Used like torchvision's datasets: `digits[i]` is (image, label), where the image is a PIL
    image of mode "L", or what `transform` makes of it, and the label an int, or what `target_transform` makes of it.

    root: the folder that holds `digits/`; None for the copy that ships with the course.
    data: uint8 tensor [N, 8, 8], 0 (paper) to 255 (ink). The original counts 0 to 16; 16 became 255.
    targets: int64 tensor [N], 0 to 9.
    classes: their ten names.
    Raises DataError where a file is missing or differs from its checksum.
    """

    classes = ("0 - zero", "1 - one", "2 - two", "3 - three", "4 - four")
    classes += ("5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine")

    def __init__(self, root=None, train=True, transform=None, target_transform=None):
        folder = (PROJECT_DATA if root is None else Path(root).expanduser()) / "digits"
        self.train, self.transform, self.target_transform = train, transform, target_transform
        part = "train" if train else "t10k"
        self.data = parse_idx(shipped(folder / f"{part}-images-idx3-ubyte"))
        self.targets = parse_idx(shipped(folder / f"{part}-labels-idx1-ubyte")).long()

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
    folder: where the files are, in torchvision's layout; else the variable COURSE_DATA, else the project's `data/`.
    Digits ship with the course: for them only the argument counts.
    download: fetch what is missing or damaged, through torchvision and with its progress bar (MNIST 12 MB,
    FashionMNIST 31 MB, CIFAR10 170 MB). Call it before you launch ranks, not in each of them. Archives that already lie
    where torchvision puts them are unpacked without network.
    Raises DataError: an unknown name, missing or damaged files, no network, a folder that cannot be written.
    """
    if name not in NAMES:
        raise DataError(f"There is no dataset {name!r} here. Choose one of: {', '.join(NAMES)}.")
    if name == "Digits":
        return Digits(folder, train=train, transform=transform)
    from torchvision import datasets

    kind = getattr(datasets, name)
    folder = download_folder(folder)
    try:
        return _open(kind, folder, train, transform)
    except DataError:
        if not download:
            raise
    _download(kind, folder)
    return _open(kind, folder, train, transform)


def _open(kind, folder, train, transform):
    """torchvision's dataset from files that are there, whole, and in agreement with each other."""
    name = kind.__name__
    home = folder / (getattr(kind, "base_folder", None) or name)
    if not home.is_dir():
        raise DataError(
            f"{name} is not in {folder}. To download it: load({name!r}, download=True). "
            f"If you have it elsewhere: set the variable {FOLDER_VARIABLE} or pass folder=…"
        )
    try:
        if hasattr(kind, "resources"):  # torchvision does not look whether MNIST's unpacked files are whole
            _check_idx_files(home / "raw", [archive.removesuffix(".gz") for archive, _ in kind.resources])
        return kind(folder, train=train, transform=transform)
    except (*BROKEN, pickle.UnpicklingError) as error:
        raise DataError(
            f"{name} in {home} is incomplete or damaged ({error}). "
            f"Delete that folder, or let load({name!r}, download=True) replace it."
        ) from error


def download_folder(folder=None):
    """Where downloads lie: `folder`, else the one that COURSE_DATA names, else the project's own."""
    return Path(folder or os.environ.get(FOLDER_VARIABLE) or PROJECT_DATA).expanduser()


def parse_idx(content):
    """The uint8 tensor in an IDX file's bytes: the format of MNIST. ValueError where size and header disagree."""
    if len(content) < 8 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError("not an IDX file of bytes")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)[4 + 4 * len(shape) :]
    if tensor.numel() != torch.Size(shape).numel():
        raise ValueError(f"{tensor.numel()} values where the header says {torch.Size(shape).numel()}")
    return tensor.view(shape)


def _check_idx_files(raw, names):
    """ValueError or OSError unless each file is as long as its header says, and what its archive, if kept, holds."""
    for name in names:
        content = (raw / name).read_bytes()
        try:
            parse_idx(content)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        archive = raw / f"{name}.gz"  # a gzip file ends with the checksum of what it unpacks to
        if archive.is_file() and struct.pack("<I", zlib.crc32(content)) != archive.read_bytes()[-8:-4]:
            raise ValueError(f"{name}: differs from {archive.name}")


def _download(kind, folder):
    """Fetch into a folder beside the final one, then move file by file.

    torchvision takes any file with the right name for a whole one. So what a broken connection or an interrupted cell
    leaves must never stand under that name, and two downloads at once must not write to the same file.
    """
    name = kind.__name__
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    except OSError as error:
        raise DataError(
            f"Cannot write to {folder} ({error}). Choose another folder: set {FOLDER_VARIABLE} or pass folder=…"
        ) from error
    before = socket.getdefaulttimeout()
    try:
        _copy_archives(kind, folder, place)
        socket.setdefaulttimeout(NETWORK_SECONDS)
        kind(place, download=True)
        for file in [path for path in place.rglob("*") if path.is_file()]:
            target = folder / file.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
    except (*BROKEN, tarfile.TarError, zlib.error, http.client.HTTPException) as error:
        what = str(error).strip() or type(error).__name__
        raise DataError(
            f"Could not download {name} to {folder}: {what}\n"
            f"Check the network and the space on the disk, and try again. Or copy {name} from another machine, "
            f"and set {FOLDER_VARIABLE} to the folder that you copied it into. Digits needs no download."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
        shutil.rmtree(place, ignore_errors=True)


def _copy_archives(kind, folder, place):
    """Bring archives that are there already: torchvision checks their md5, and fetches only those that fail."""
    wanted = [f"{kind.__name__}/raw/{archive}" for archive, _ in getattr(kind, "resources", [])]
    for relative in wanted or [kind.filename]:
        if (folder / relative).is_file():
            (place / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / relative, place / relative)
