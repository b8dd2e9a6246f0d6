"""Lesson 04: the stand-in for nn.DataParallel against torch's own parts, the models behind the explorer, the worker."""

import importlib
import itertools

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.path import Path
from matplotlib.text import Text
from torch import nn

from helpers import launch
from helpers.figures import png
from helpers.hardware import hardware
from lessons.data_parallel import exercises as ex
from lessons.data_parallel import replicas_explorer as explorer
from lessons.data_parallel.exercises import counted_step, made, replica_of, shown

torch_replicate = importlib.import_module("torch.nn.parallel.replicate")  # the package has a function of this name
torch_scatter_gather = importlib.import_module("torch.nn.parallel.scatter_gather")


# -------------------------------------------------------------------------- the stand-in against the library's own code


class OnCpu:
    """In place of torch's Scatter and Gather, whose code is for GPUs: the same cuts and joins for CPU tensors."""

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
    """Torch's replicate, scatter and gather, with what needs a GPU replaced: copies, cuts and joins of tensors."""

    def copies(tensors, devices, detach=False):
        made = [[tensor.view_as(tensor) if device == 0 else tensor.clone() for tensor in tensors] for device in devices]
        return [[tensor.detach() for tensor in of_device] for of_device in made] if detach else made

    monkeypatch.setattr(torch_replicate, "_broadcast_coalesced_reshape", copies)
    monkeypatch.setattr(torch_replicate, "_get_device_index", lambda device, optional: device)
    monkeypatch.setattr(torch_scatter_gather, "Scatter", OnCpu.Scatter)
    monkeypatch.setattr(torch_scatter_gather, "Gather", OnCpu.Gather)


def test_scatter_is_the_librarys(library):
    for what, (plan, samples, n_devices) in ex.scatter_nested.cases.items():
        inputs = made(plan, samples)
        ours = ex.scatter_nested.answer(inputs, n_devices)
        assert shown(ours) == shown(list(torch_scatter_gather.scatter(inputs, range(n_devices)))), what


def test_gather_is_the_librarys(library):
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
    lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), shared_layers,
    lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.LSTM(6, 4, batch_first=True)), lambda: nn.Sequential(),
], ids=["mlp", "shared", "lstm", "empty"])
@pytest.mark.parametrize("whose", REPLICATE)
@pytest.mark.parametrize("samples, n_devices", [(8, 4), (5, 4), (2, 4)])
def test_gradient_is_that_of_one_device(make, whose, samples, n_devices, library):
    model = make().double()

    def loss(outputs):
        return torch.cat([part[0] if isinstance(part, tuple) else part for part in outputs]).square().mean()

    chunks = torch.rand(samples, 6, dtype=torch.double).requires_grad_().chunk(n_devices)
    replicas = REPLICATE[whose](model, len(chunks))
    weights = list(model.parameters())
    if not weights:
        assert torch.equal(replicas[0](chunks[0]), chunks[0])
        return
    many = torch.autograd.grad(loss([replica(chunk) for replica, chunk in zip(replicas, chunks, strict=True)]), weights)
    one = torch.autograd.grad(loss([model(torch.cat(chunks))]), weights)
    for a, b in zip(many, one, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


# ------------------------------------------------------------------------------------------- the models of the explorer


def test_chunk_sizes_are_torchs():
    for batch, n_devices in itertools.product(range(1, 41), range(1, 9)):
        sizes = [len(chunk) for chunk in torch.zeros(batch).chunk(n_devices)]
        assert explorer.chunk_sizes(batch, n_devices) == sizes + [0] * (n_devices - len(sizes))


@pytest.mark.parametrize("batch, n_devices, states", [(8, 4, 2), (5, 4, 0), (9, 4, 1), (1, 3, 2), (7, 2, 1),
                                                      (6, 1, 2)])
def test_memory_is_what_was_counted(batch, n_devices, states):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24))
    samples = torch.rand(batch, 16)
    one = counted_step(model, samples[:1], 1, 0)[0]
    computed = explorer.memory(batch, n_devices, one["weights"], one["activations"], one["output"], states)
    for device, (mine, real) in enumerate(zip(computed, counted_step(model, samples, n_devices, states), strict=True)):
        loss_keeps = batch * one["output"] if device == 0 else 0
        assert {name: mine[name] for name in ("weights", "gradients", "activations", "optimizer")} == {
            name: real[name] for name in ("weights", "gradients", "activations", "optimizer")}
        assert mine["outputs"] == real["output"] + real["gathered"] + loss_keeps


@pytest.mark.parametrize("nccl", [False, True])
def test_timeline_makes_sense(nccl):
    for n_devices, batch, parameters, output in itertools.product((1, 4, 8), (1, 5, 256), (10**6, 10**9), (1, 10**7)):
        events = explorer.timeline(batch, n_devices, 4 * parameters, 4 * output, nccl=nccl)
        working = sum(size > 0 for size in explorer.chunk_sizes(batch, n_devices))
        for device in range(n_devices):
            mine = [event for event in events if event[0] == device]
            assert all(begin <= end for _, _, begin, end in mine) and (device < working) == bool(mine)
            assert all(a[3] <= b[2] + 1e-9 for a, b in itertools.pairwise(mine)), "a device does one thing at a time"
            if device:
                assert not {"loss", "optimizer"} & {phase for _, phase, _, _ in mine}
        phases = {phase for _, phase, _, _ in events}
        assert ({"scatter", "replicate", "gather", "reduce"} <= phases) == (working > 1)


def test_what_the_lesson_says_of_the_opening_case():
    """64 samples, 25 million weights, 100 uses: slower than one device with copies in turn, faster with NCCL."""

    def speed(*link):
        one, four = (explorer.timeline(64, n, 10**8, 4000, 100, *link)[-1][3] for n in (1, 4))
        return one / four

    in_turn, nccl, nvlink = (speed(*link) for link in explorer.LINKS.values())
    assert in_turn < 0.7 < 1 < nccl < nvlink
    model = explorer.timeline(64, 4, 10**8, 4000, 100, 25e9, nccl=False)
    copies = {(begin, end) for _, phase, begin, end in model if phase in ("replicate", "reduce")}
    assert len(copies) == 6 and all(end - begin == pytest.approx(4) for begin, end in copies)
    assert f"{in_turn:.2f} times the speed" in explorer.data_parallel_explorer().picture.value


@pytest.fixture(autouse=True)
def style():
    with plt.style.context("helpers.course"):
        yield


@pytest.fixture(scope="module")
def draw():
    """The explorer's picture of n_devices, batch, parameters, output, uses, link."""
    with plt.style.context("helpers.course"):
        draw = explorer.data_parallel_explorer().draw
    return lambda *case, uses=1, link="PCIe 4, NCCL": draw(*case, uses, link)


@pytest.mark.parametrize("case", [(1, 1, 10**6, 1, 1), (4, 9, 10**6, 10, 1), (8, 256, 10**9, 10**7, 1000)], ids=str)
@pytest.mark.parametrize("link", list(explorer.LINKS)[:2])
def test_the_pictures_show_the_models(case, link, draw):
    n_devices, batch, parameters, output, uses = case
    above, below = draw(n_devices, batch, parameters, output, uses=uses, link=link).axes
    held = explorer.memory(batch, n_devices, 4 * parameters, explorer.INPUT + uses * explorer.PER_USE, 4 * output)
    unit = 2**30 if above.get_xlabel() == "GiB held" else 2**20
    widths = [box.width * unit for bars in above.collections for box in map(Path.get_extents, bars.get_paths())]
    assert widths == pytest.approx([kinds[kind] for kinds in held for kind in explorer.KINDS], abs=1)
    events = explorer.timeline(batch, n_devices, 4 * parameters, 4 * output, uses, *explorer.LINKS[link])
    _, *done = below.collections
    boxes = [path.get_extents() for bars in done for path in bars.get_paths()]
    assert sorted((round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes) == [
        pytest.approx(event) for event in sorted((device, begin, end) for device, _, begin, end in events)]
    assert [text.get_text() for text in above.texts].count("no samples: idle") == (batch == 9)


@pytest.mark.parametrize("case", [(8, 256, 10**9, 10**7), (1, 1, 10**6, 1), (8, 250, 35 * 10**7, 1000)], ids=str)
def test_nothing_in_the_picture_overlaps_or_is_cut_off(case, draw, monkeypatch):
    texts, draw_text = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, renderer: (texts.append(text), draw_text(text, renderer)))
    figure = draw(*case)
    png(figure)
    texts = [text for text in texts if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert len(boxes) > 25 and all(text.get_fontsize() >= 11 for text in texts)
    for text, box in boxes:
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and 0 <= box.y0 and box.y1 <= figure.bbox.y1, text
    for (text, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.padded(-1).overlaps(its.padded(-1)), (text, other)


def test_controls_redraw():
    widget = explorer.data_parallel_explorer()
    seen = {widget.picture.value}
    for name, value in (("n_devices", 3), ("batch", 7), ("parameters", 1_000_000), ("output", 1_000_000), ("uses", 1),
                        ("link", "NVLink 4, NCCL")):
        widget.controls[name].value = value
        seen.add(widget.picture.value)
    assert len(seen) == 7
    assert "chunks of 3, 3, 1" in widget.picture.value


# ----------------------------------------------------------------------------------------------------------- the worker


def said(lines):
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_worker_tells_what_the_library_does():
    gpus = hardware.usable_gpus
    run = launch("real_data_parallel.py", nprocs=1, gpus=gpus, show=False, timeout=120)
    log = said(run.logs[0].splitlines())
    assert log["same gradient"] == "True"
    assert log["first name in its state dict"] == "module.layers.0.weight"
    if gpus > 1:
        sizes = [size for size in explorer.chunk_sizes(5, gpus) if size]
        assert log["batch sizes that forward saw"] == str(sizes)
        assert log["shape of a scalar loss"] == str([len(sizes)]) and "input tensors were scalars" in log["torch warns"]
    else:
        assert log["batch sizes that forward saw"] == "[5]" and log["shape of a scalar loss"] == "[]"
        assert log["torch warns"] == "nothing"


@pytest.mark.usefixtures("nothing_left")
def test_ddp_trains_as_data_parallel_does():
    one = launch("train_dp.py", nprocs=1, show=False, timeout=60).results
    two = launch("train_ddp.py", nprocs=2, show=False, timeout=60).results
    weights = [torch.tensor(rows[0]["weights"]) for rows in (*one, *two)]
    assert all(torch.allclose(weights[0], other, atol=1e-5) for other in weights[1:])
