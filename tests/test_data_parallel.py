"""Lesson 04: the stand-in for nn.DataParallel against torch's parts, the explorer's models, the worker."""

import importlib
import itertools

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.text import Text
from torch import nn

from helpers import launch
from helpers.figures import png
from helpers.hardware import hardware
from lessons.data_parallel import exercises as ex
from lessons.data_parallel import replicas_explorer as explorer
from lessons.data_parallel.exercises.device_memory import replica_of
from lessons.data_parallel.exercises.nested_values import made, shown

# The package has a function of this name.
torch_replicate = importlib.import_module("torch.nn.parallel.replicate")
torch_scatter_gather = importlib.import_module("torch.nn.parallel.scatter_gather")


# ---------------------------------------------------------------- the stand-in against the library's own code


class OnCpu:
    """In place of torch's Scatter and Gather, whose code is for GPUs: the same cuts and joins on the CPU."""

    class Scatter:
        @staticmethod
        def apply(devices, chunk_sizes, dim, tensor):
            assert chunk_sizes is None
            return tensor.chunk(len(devices), dim)

    class Gather:
        @staticmethod
        def apply(_target, dim, *tensors):
            if all(tensor.dim() == 0 for tensor in tensors):
                tensors = [tensor.view(1) for tensor in tensors]
            return torch.cat(tensors, dim)


@pytest.fixture
def library(monkeypatch):
    """Torch's replicate, scatter and gather, but for what needs a GPU: copies, cuts and joins of tensors."""

    def copies(tensors, devices, detach=False):
        made = [[tensor.view_as(tensor) if device == 0 else tensor.clone() for tensor in tensors]
                for device in devices]
        return [[tensor.detach() for tensor in of_device] for of_device in made] if detach else made

    monkeypatch.setattr(torch_replicate, "_broadcast_coalesced_reshape", copies)
    monkeypatch.setattr(torch_replicate, "_get_device_index", lambda device, optional: device)
    monkeypatch.setattr(torch_scatter_gather, "Scatter", OnCpu.Scatter)
    monkeypatch.setattr(torch_scatter_gather, "Gather", OnCpu.Gather)


def test_scatter_and_gather_are_the_librarys(library):
    for what, (plan, samples, n_devices) in ex.scatter_nested.cases.items():
        inputs = made(plan, samples)
        ours = ex.scatter_nested.answer(inputs, n_devices)
        assert shown(ours) == shown(list(torch_scatter_gather.scatter(inputs, range(n_devices)))), what
    for what, (plan, sizes) in ex.gather_nested.cases.items():
        outputs = [made(plan, samples, device) for device, samples in enumerate(sizes)]
        assert shown(ex.gather_nested.answer(outputs)) == shown(torch_scatter_gather.gather(outputs, 0)), what


REPLICATE = {"ours": lambda model, number: [replica_of(model, device) for device in range(number)],
             "torch's": lambda model, number: torch_replicate.replicate(model, range(number))}


class Remembers(nn.Module):
    """What the lesson asks replicas to remember."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.norm = 0, [], nn.BatchNorm1d(3)

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(x))
        return self.norm(x)


@pytest.mark.parametrize("whose", REPLICATE)
def test_what_replicas_forget(whose, library):
    model, batch, hooked = Remembers(), torch.rand(9, 3), []
    model.norm.register_forward_hook(lambda *args: hooked.append(len(args[-1])))
    for replica, chunk in zip(REPLICATE[whose](model, 3), batch.chunk(3), strict=True):
        replica(chunk)
    assert (model.calls, model.seen, hooked) == (0, [3, 3, 3], [3, 3, 3])
    assert torch.allclose(model.norm.running_mean, 0.1 * batch[:3].mean(0))
    assert model.norm.num_batches_tracked == 1


def shared_layers():
    layer = nn.Linear(6, 6, bias=False)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Identity(), nn.Linear(6, 2))


@pytest.mark.parametrize("make", [
    shared_layers, lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.LSTM(6, 4, batch_first=True)),
], ids=["shared", "lstm"])
@pytest.mark.parametrize("whose", REPLICATE)
def test_gradient_is_that_of_one_device(make, whose, library):
    model = make().double()

    def loss(outputs):
        return torch.cat([part[0] if isinstance(part, tuple) else part for part in outputs]).square().mean()

    chunks = torch.rand(5, 6, dtype=torch.double).requires_grad_().chunk(4)
    replicas, weights = REPLICATE[whose](model, len(chunks)), list(model.parameters())
    outputs = [replica(chunk) for replica, chunk in zip(replicas, chunks, strict=True)]
    many = torch.autograd.grad(loss(outputs), weights)
    one = torch.autograd.grad(loss([model(torch.cat(chunks))]), weights)
    for a, b in zip(many, one, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


# --------------------------------------------------------------------------------- the models of the explorer


def test_chunk_sizes_are_torchs():
    for batch, n_devices in itertools.product(range(1, 41), range(1, 9)):
        sizes = [len(chunk) for chunk in torch.zeros(batch).chunk(n_devices)]
        assert explorer.chunk_sizes(batch, n_devices) == sizes + [0] * (n_devices - len(sizes))


@pytest.fixture
def draw():
    """The explorer's picture of n_devices, batch, parameters, output, uses, link."""
    with plt.style.context("helpers.course"):
        yield explorer.data_parallel_explorer().draw


@pytest.mark.parametrize("link, case", [("PCIe 4, copies in turn", (4, 9, 10**6, 10, 1)),
                                        ("PCIe 4, NCCL", (8, 256, 10**9, 10**7, 1000))])
def test_the_pictures_show_the_models(link, case, draw):
    above, below = draw(*case, link).axes
    n_devices, batch, parameters, output, uses = case
    activations = explorer.INPUT + uses * explorer.PER_USE
    held = explorer.memory(batch, n_devices, 4 * parameters, activations, 4 * output)
    unit = 2**30 if above.get_xlabel() == "GiB held" else 2**20
    widths = [path.get_extents().width * unit for bars in above.collections for path in bars.get_paths()]
    assert widths == pytest.approx([kinds[kind] for kinds in held for kind in explorer.KINDS], abs=1)
    events = explorer.timeline(batch, n_devices, 4 * parameters, 4 * output, uses, *explorer.LINKS[link])
    _, *done = below.collections
    boxes = [path.get_extents() for bars in done for path in bars.get_paths()]
    assert sorted((round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes) == [
        pytest.approx(event) for event in sorted((device, begin, end) for device, _, begin, end in events)]
    assert [text.get_text() for text in above.texts].count("no samples: idle") == (batch == 9)


def test_nothing_in_the_picture_overlaps_or_is_cut_off(draw, monkeypatch):
    texts, draw_text = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, renderer: (texts.append(text), draw_text(text, renderer)))
    figure = draw(8, 256, 10**9, 10**7, 1, "PCIe 4, NCCL")
    png(figure)
    texts = [text for text in texts if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert len(boxes) > 25 and all(text.get_fontsize() >= 11 for text in texts)
    for text, box in boxes:
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and 0 <= box.y0 and box.y1 <= figure.bbox.y1, text
    for (text, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.padded(-1).overlaps(its.padded(-1)), (text, other)


# ------------------------------------------------------------------------------------------------- the worker


def test_the_worker_tells_what_the_library_does():
    gpus = hardware.usable_gpus
    run = launch("real_data_parallel.py", nprocs=1, gpus=gpus, show=False, timeout=120)
    log = dict(line.split(": ", 1) for line in run.logs[0].splitlines())
    assert log["same gradient"] == "True"
    assert log["first name in its state dict"] == "module.layers.0.weight"
    if gpus > 1:
        sizes = [size for size in explorer.chunk_sizes(5, gpus) if size]
        assert log["batch sizes that forward saw"] == str(sizes)
        assert log["shape of a scalar loss"] == str([len(sizes)])
        assert "input tensors were scalars" in log["torch warns"]
    else:
        assert log["batch sizes that forward saw"] == "[5]" and log["shape of a scalar loss"] == "[]"
        assert log["torch warns"] == "nothing"
