"""helpers.data: the digits that ship, and downloads by torchvision's own code from a server on loopback."""

import functools
import gzip
import hashlib
import http.server
import shutil
import socket
import struct
import threading
from pathlib import Path

import pytest
import torch

from helpers import data
from helpers.data import DataError, Digits, load
from helpers.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "data" / "digits"


def idx(*shape):
    """An IDX file of bytes 0, 1, 2… of this shape."""
    head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    return head + bytes(i % 10 for i in range(torch.Size(shape).numel()))


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    cut = 0  # how many bytes to leave out at the end of each file

    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        content = source.read()
        outputfile.write(content[: len(content) - self.cut])


@pytest.fixture
def datasets():
    """Those of torchvision, whose import takes a second: not in each process that collects the tests."""
    from torchvision import datasets

    return datasets


@pytest.fixture
def site(tmp_path, monkeypatch, datasets):
    """A web server with a tiny MNIST, which torchvision's class is pointed to."""
    folder = tmp_path / "site"
    folder.mkdir()
    resources = []
    for part, count in (("train", 6), ("t10k", 3)):
        for what, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            content = gzip.compress(idx(*shape))
            name = f"{part}-{what}-ubyte.gz"
            (folder / name).write_bytes(content)
            resources.append((name, md5(content)))
    handler = type("H", (Handler,), {})
    serve = functools.partial(handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [url])
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    yield handler
    server.shutdown()
    server.server_close()


def no_server(monkeypatch, datasets):
    """Point torchvision to a port where nobody listens."""
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{free_port()}/"])


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


# The digits that ship


@pytest.mark.parametrize(("train", "count"), [(True, 1437), (False, 360)])
def test_digits(train, count, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))  # of no account to what ships with the course
    digits = load("Digits", train=train)
    assert len(digits) == count and str(count) in repr(digits)
    assert digits.data.shape == (count, 8, 8) and digits.data.dtype == torch.uint8
    assert digits.data.min() == 0 and digits.data.max() == 255
    assert digits.targets.shape == (count,) and digits.targets.dtype == torch.int64
    share = torch.bincount(digits.targets) / count
    assert len(share) == len(digits.classes) == 10 and share.min() > 0.09 and share.max() < 0.11


def test_digits_behave_as_torchvisions_datasets_do():
    image, label = Digits()[0]
    assert (image.mode, image.size, label, type(label)) == ("L", (8, 8), 0, int)
    assert [label for _, label in map(Digits().__getitem__, range(10))] == list(range(10))
    changed = Digits(transform=lambda image: image.size, target_transform=str)
    assert changed[-1] == ((8, 8), str(int(Digits().targets[-1])))
    with pytest.raises(IndexError):
        Digits()[1437]
    images, labels = Digits(train=False).tensors()
    assert images.shape == (360, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1 and labels.dtype == torch.int64


def test_digits_come_from_the_folder_that_is_given(tmp_path):
    with pytest.raises(DataError, match="Cannot read train-images"):
        load("Digits", folder=tmp_path)
    shutil.copytree(SHIPPED, tmp_path / "digits")
    assert len(load("Digits", folder=tmp_path)) == 1437


# The larger sets


def test_download_then_read_without_network(site, tmp_path, monkeypatch, datasets):
    assert len(load("MNIST", folder=tmp_path / "d", download=True)) == 6
    no_server(monkeypatch, datasets)
    size = {"transform": lambda image: image.size}
    mnist = load("MNIST", train=False, folder=tmp_path / "d", download=True, **size)
    assert isinstance(mnist, datasets.MNIST) and len(mnist) == 3 and mnist[1] == ((28, 28), 1)
    shutil.copytree(tmp_path / "site", tmp_path / "copied" / "MNIST" / "raw")
    assert len(load("MNIST", folder=tmp_path / "copied", download=True)) == 6, "from archives that lie there"


def test_missing_says_what_to_do(site, tmp_path):
    folder = tmp_path / "empty"
    with pytest.raises(DataError) as caught:
        load("MNIST", folder=folder)
    assert all(word in str(caught.value) for word in ("download=True", "COURSE_DATA", str(folder)))
    assert not folder.exists()


def test_the_argument_goes_before_the_variable_before_the_cache(site, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    for folder, change in [
        ("cache", lambda: None),
        ("cache", lambda: monkeypatch.setenv("COURSE_DATA", "")),
        ("variable", lambda: monkeypatch.setenv("COURSE_DATA", str(tmp_path / "variable"))),
    ]:
        change()
        with pytest.raises(DataError, match=folder):
            load("MNIST")
    load("MNIST", folder=tmp_path / "argument", download=True)
    assert files(tmp_path / "argument") and not files(tmp_path / "variable")
    load("MNIST", download=True)
    assert files(tmp_path / "variable") and not files(tmp_path / "cache")


def test_a_damaged_file_is_noticed_and_deleting_it_helps(site, tmp_path):
    load("MNIST", folder=tmp_path, download=True)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match="delete it there first"):
        load("MNIST", folder=tmp_path, download=True)
    file.unlink()
    assert len(load("MNIST", folder=tmp_path, download=True)) == 6


def test_no_network_and_a_broken_download(site, tmp_path, monkeypatch, datasets):
    site.cut = 7
    with pytest.raises(DataError, match=r"cannot be read(?s:.*)COURSE_DATA"):
        load("MNIST", folder=tmp_path, download=True)
    site.cut = 0
    assert load("MNIST", folder=tmp_path, download=True)
    no_server(monkeypatch, datasets)
    with pytest.raises(DataError, match=r"cannot be read(?s:.*)look at the network"):
        load("MNIST", folder=tmp_path / "another", download=True)


def test_a_silent_server_counts_as_no_network(site, tmp_path, monkeypatch, datasets):
    monkeypatch.setattr(data, "NETWORK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{sock.getsockname()[1]}/"])
        with pytest.raises(DataError, match="cannot be read"):
            load("MNIST", folder=tmp_path / "d", download=True)
    assert socket.getdefaulttimeout() is None


def test_a_folder_that_cannot_be_written(site, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"right to write(?s:.*)COURSE_DATA"):
        load("MNIST", folder=tmp_path / "file", download=True)
