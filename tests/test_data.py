"""helpers.data: the digits that ship, and downloads through torchvision's own code from a server on loopback."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
import torch

from helpers import data
from helpers.data import DataError, Digits, load
from helpers.hardware import free_port

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "data" / "digits"
REAL = Path(os.environ.get("COURSE_DATA") or "/nowhere")


def idx(*shape):
    """An IDX file of bytes 0, 1, 2… of this shape."""
    count = torch.Size(shape).numel()
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(i % 10 for i in range(count))


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
    """A web server with tiny stand-ins for MNIST and CIFAR10, which torchvision's classes are pointed to."""
    folder = tmp_path / "site"
    folder.mkdir()
    resources = []
    for part, count in (("train", 6), ("t10k", 3)):
        for what, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            content = gzip.compress(idx(*shape))
            name = f"{part}-{what}-ubyte.gz"
            (folder / name).write_bytes(content)
            resources.append((name, md5(content)))
    cifar = {"batches.meta": pickle.dumps({"label_names": ["a", "b"]})}
    for name in ("data_batch_1", "test_batch"):
        cifar[name] = pickle.dumps({"data": torch.zeros(2, 3072, dtype=torch.uint8).numpy(), "labels": [0, 1]})
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as tar:
        for name, content in cifar.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

    handler = type("H", (Handler,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("COURSE_DATA", raising=False)
    for kind in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(kind, "mirrors", [url])
        monkeypatch.setattr(kind, "resources", resources)
    monkeypatch.setattr(datasets.CIFAR10, "url", url + "cifar.tar.gz")
    monkeypatch.setattr(datasets.CIFAR10, "filename", "cifar.tar.gz")
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", md5((folder / "cifar.tar.gz").read_bytes()))
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", md5(cifar["data_batch_1"])]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", md5(cifar["test_batch"])]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(cifar["batches.meta"])}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    yield handler
    server.shutdown()
    server.server_close()


def no_server(monkeypatch, datasets):
    """Point torchvision to a port where nobody listens."""
    url = f"http://127.0.0.1:{free_port()}/"
    monkeypatch.setattr(datasets.MNIST, "mirrors", [url])
    monkeypatch.setattr(datasets.CIFAR10, "url", url + "cifar.tar.gz")


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


# The digits that ship


@pytest.mark.parametrize(("train", "count"), [(True, 1437), (False, 360)])
def test_digits(train, count):
    digits = Digits(train=train)
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


def test_digits_as_tensors():
    images, labels = Digits(train=False).tensors()
    assert images.shape == (360, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() == 0 and images.max() == 1 and labels.dtype == torch.int64


def test_the_original_grey_levels_come_back():
    values = sorted({round(byte * 16 / 255) for byte in Digits().data.unique().tolist()})
    assert values == list(range(17)) and [(x * 255 + 8) // 16 for x in values] == Digits().data.unique().tolist()


def test_torchvision_reads_the_shipped_files(datasets):
    read = datasets.mnist.read_image_file
    assert torch.equal(read(str(SHIPPED / "train-images-idx3-ubyte")), Digits().data)
    read = datasets.mnist.read_label_file
    assert torch.equal(read(str(SHIPPED / "t10k-labels-idx1-ubyte")), Digits(train=False).targets)


def test_digits_do_not_import_torchvision_or_pil():
    code = "import sys; from helpers.data import Digits; Digits().tensors(); "
    code += "print({'torchvision', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_a_flipped_byte_in_the_digits_is_noticed(tmp_path, name):
    shutil.copytree(SHIPPED, tmp_path / "digits")
    assert len(load("Digits", folder=tmp_path)) == 1437
    content = bytearray((tmp_path / "digits" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / "digits" / name).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged(?s:.*)git checkout"):
        Digits(tmp_path)
    (tmp_path / "digits" / name).unlink()
    with pytest.raises(DataError, match=r"Cannot read(?s:.*)git checkout"):
        Digits(tmp_path)


def test_git_keeps_the_digits_and_ignores_downloads():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    kept = ["data/digits/SHA256SUMS", "data/.gitignore"]
    ignored = ["data/MNIST/raw/x.gz", "data/.download-x/y", "data/cifar.tar.gz"]
    command = ["git", "check-ignore", "--no-index", *kept, *ignored]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split() == ignored


# The larger sets


def test_download_then_read_without_network(site, tmp_path, monkeypatch, datasets):
    for name in ("MNIST", "FashionMNIST"):
        assert len(load(name, folder=tmp_path / "d", download=True)) == 6
    no_server(monkeypatch, datasets)
    mnist = load("MNIST", train=False, folder=tmp_path / "d", download=True, transform=lambda image: image.size)
    assert isinstance(mnist, datasets.MNIST) and len(mnist) == 3 and mnist[1] == ((28, 28), 1)
    assert not list((tmp_path / "d").glob(".download-*"))


def test_download_cifar(site, tmp_path, datasets):
    with pytest.raises(DataError, match="download=True"):
        load("CIFAR10", folder=tmp_path)
    cifar = load("CIFAR10", folder=tmp_path, download=True)
    assert isinstance(cifar, datasets.CIFAR10) and cifar[1][0].size == (32, 32) and cifar.classes == ["a", "b"]
    batch = tmp_path / "cifar-10-batches-py" / "test_batch"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        load("CIFAR10", folder=tmp_path)
    assert len(load("CIFAR10", train=False, folder=tmp_path, download=True)) == 2, "a download repairs it"


def test_archives_already_there_need_no_network(site, tmp_path, monkeypatch, datasets):
    shutil.copytree(tmp_path / "site", tmp_path / "d" / "MNIST" / "raw")
    no_server(monkeypatch, datasets)
    with pytest.raises(DataError, match="incomplete"):
        load("MNIST", folder=tmp_path / "d")
    assert len(load("MNIST", folder=tmp_path / "d", download=True)) == 6


def test_missing_says_what_to_do(site, tmp_path):
    with pytest.raises(DataError) as caught:
        load("MNIST", folder=tmp_path / "empty")
    assert all(word in str(caught.value) for word in ("download=True", "COURSE_DATA", str(tmp_path / "empty")))
    assert not (tmp_path / "empty").exists()


def test_the_argument_goes_before_the_variable_before_the_project(site, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "PROJECT_DATA", tmp_path / "project")
    for folder, change in [
        ("project", lambda: None),
        ("project", lambda: monkeypatch.setenv("COURSE_DATA", "")),
        ("variable", lambda: monkeypatch.setenv("COURSE_DATA", str(tmp_path / "variable"))),
    ]:
        change()
        with pytest.raises(DataError, match=folder):
            load("MNIST")
    load("MNIST", folder=tmp_path / "argument", download=True)
    assert files(tmp_path / "argument") and not files(tmp_path / "variable") and not files(tmp_path / "project")
    load("MNIST", download=True)
    assert files(tmp_path / "variable") and not files(tmp_path / "project")


def test_the_shipped_digits_do_not_depend_on_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert len(load("Digits", train=False)) == 360


@pytest.mark.parametrize("name", ["mnist", "ImageNet", "", None])
def test_an_unknown_name(name):
    with pytest.raises(DataError, match="FashionMNIST"):
        load(name)


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "header", "changed", "gone"])
def test_damaged_mnist_is_noticed_and_repaired(site, tmp_path, damage):
    load("MNIST", folder=tmp_path, download=True)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    changed = {"cut": whole[:-5], "longer": whole + b"x", "empty": b"", "header": b"x" + whole[1:], "gone": None}
    file.unlink()
    if damage != "gone":
        file.write_bytes(changed.get(damage, whole[:-1] + b"x"))
    with pytest.raises(DataError, match=r"incomplete or damaged(?s:.*)Delete"):
        load("MNIST", folder=tmp_path)
    assert len(load("MNIST", folder=tmp_path, download=True)) == 6
    assert file.read_bytes() == whole


def test_a_file_cut_short_is_noticed_without_its_archive_and_before_its_part_is_read(site, tmp_path):
    load("MNIST", folder=tmp_path, download=True)
    raw = tmp_path / "MNIST" / "raw"
    for archive in raw.glob("*.gz"):
        archive.unlink()
    assert len(load("MNIST", folder=tmp_path)) == 6
    file = raw / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte: 2351 values where the header says 2352"):
        load("MNIST", train=True, folder=tmp_path)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_no_network(site, tmp_path, monkeypatch, datasets, name):
    no_server(monkeypatch, datasets)
    with pytest.raises(DataError, match=r"Could not download(?s:.*)COURSE_DATA"):
        load(name, folder=tmp_path / "d", download=True)
    assert not files(tmp_path / "d")


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_a_broken_download_leaves_nothing(site, tmp_path, name):
    site.cut = 7
    with pytest.raises(DataError, match="Could not download"):
        load(name, folder=tmp_path / "d", download=True)
    assert not list((tmp_path / "d").iterdir())
    site.cut = 0
    assert load(name, folder=tmp_path / "d", download=True)


def test_an_interrupted_download_leaves_nothing(site, tmp_path, monkeypatch, datasets):
    def stop_halfway(_archive, extract_root, *_):
        for file, _ in datasets.MNIST.resources:
            (Path(extract_root) / file.removesuffix(".gz")).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torchvision.datasets.utils.extract_archive", stop_halfway)
        with pytest.raises(KeyboardInterrupt):
            load("MNIST", folder=tmp_path / "d", download=True)
    assert not list((tmp_path / "d").iterdir())
    assert len(load("MNIST", folder=tmp_path / "d", download=True)) == 6


def test_a_silent_server_counts_as_no_network(site, tmp_path, monkeypatch, datasets):
    monkeypatch.setattr(data, "NETWORK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{sock.getsockname()[1]}/"])
        with pytest.raises(DataError, match="timed out"):
            load("MNIST", folder=tmp_path / "d", download=True)
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_written(site, tmp_path, below):
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"Cannot write to(?s:.*)COURSE_DATA"):
        load("MNIST", folder=tmp_path / "file" / below, download=True)


@pytest.mark.skipif(not (REAL / "MNIST" / "raw").is_dir(), reason="COURSE_DATA names no folder with the real MNIST")
def test_the_real_mnist():
    assert load("MNIST").data.shape == (60000, 28, 28) and load("MNIST", train=False).data.shape == (10000, 28, 28)
