"""Lesson 04: the stand-in for nn.DataParallel against torch's own parts, the models behind the explorer, the worker."""

import importlib
import itertools
import runpy

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.text import Text
from torch import nn

from helpers import launch
from helpers.figures import alt, png
from helpers.hardware import hardware
from helpers.notebooks import LESSONS
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
@pytest.mark.parametrize("samples, n_devices", [(8, 4), (5, 4), (9, 4), (2, 4), (3, 1)])
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


@pytest.mark.parametrize("whose", REPLICATE)
def test_replicas_list_their_weights_only_in_the_lesson(whose, library):
    replica = REPLICATE[whose](nn.Sequential(nn.Linear(3, 2)), 2)[1]
    assert len(list(replica.parameters())) == (2 if whose == "ours" else 0)
    assert replica(torch.rand(4, 3)).shape == (4, 2)


def test_a_part_may_be_none():
    model = nn.Linear(2, 1)
    model.extra = None
    model.register_module("nothing", None)
    model.register_buffer("empty", None)
    assert torch.equal(replica_of(model, 1)(torch.ones(1, 2)), model(torch.ones(1, 2)))


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


def test_a_cross_entropy_keeps_as_much_as_its_input():
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    outputs, labels = torch.rand(50, 40, requires_grad=True), torch.zeros(50, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(outputs, labels)
    kept.pop(labels.data_ptr())
    assert outputs.nbytes <= sum(kept.values()) <= outputs.nbytes + 8 and loss.requires_grad


CASES = list(itertools.product((1, 2, 4, 8), (1, 5, 256), (1_000_000, 10**9), (1, 10**7), (1, 1000)))


@pytest.mark.parametrize("n_devices, batch, parameters, output, uses", CASES)
def test_timeline_makes_sense(n_devices, batch, parameters, output, uses):
    events = explorer.timeline(batch, n_devices, 4 * parameters, 4 * output, uses)
    working = sum(size > 0 for size in explorer.chunk_sizes(batch, n_devices))
    for device in range(n_devices):
        mine = [event for event in events if event[0] == device]
        assert all(begin <= end for _, _, begin, end in mine)
        assert all(a[3] <= b[2] + 1e-9 for a, b in itertools.pairwise(mine)), "a device does one thing at a time"
        assert (device < working) == bool(mine)
        if device:
            assert not {"loss", "optimizer"} & {phase for _, phase, _, _ in mine}
    phases = list(dict.fromkeys(phase for _, phase, _, _ in events))
    assert phases == [phase for phase in explorer.PHASES if phase in phases]
    assert ({"scatter", "replicate", "gather", "reduce"} <= set(phases)) == (working > 1)
    took, total = explorer.busy(events)
    assert all(0 < took[device] <= total + 1e-9 for device in took)


def test_faster_links_and_more_work_per_weight_favour_many_devices():
    def seconds(n_devices, uses, link):
        return max(end for *_, end in explorer.timeline(64, n_devices, 10**8, 4000, uses, link))

    assert seconds(4, 100, 100e9) < seconds(4, 100, 12e9)
    gains = [seconds(1, uses, 12e9) / seconds(4, uses, 12e9) for uses in (1, 10, 100, 1000)]
    assert gains == sorted(gains) and gains[0] < 1 < gains[-1] < 4


def test_the_answers_to_the_lessons_questions():
    weights = 4 * 25_000_000  # as the explorer opens: 4 devices, 64 samples, 100 uses, PCIe, 1,000 outputs

    def ratio(outputs, uses=100):
        held = explorer.memory(64, 4, weights, explorer.INPUT + uses * explorer.PER_USE, 4 * outputs)
        return sum(held[0].values()) / sum(held[1].values())

    def speed(batch=64, uses=100, link=12e9):
        one, four = (explorer.timeline(batch, n, weights, 4000, uses, link)[-1][3] for n in (1, 4))
        return one / four

    assert ratio(50_000) < 2 < ratio(1_000_000)
    assert all(1.9 < ratio(outputs, uses=1) < 2 for outputs in (1, 10, 1000)), "by Adam alone"
    assert speed() < 1 < min(speed(batch=256), speed(link=100e9), speed(uses=1000))
    above, below = explorer.data_parallel_explorer().figure().axes
    assert f"{speed():.2f} times the speed" in below.get_title("left")
    held = explorer.memory(64, 4, weights, explorer.INPUT + 100 * explorer.PER_USE, 4000)
    assert f"Device 0 holds {explorer._size(sum(held[0].values()))}, device 1" in above.get_title("left")


def bars(ax):
    """By row, what `broken_barh` drew: (begin, end, colour)."""
    return [[(path.get_extents().x0, path.get_extents().x1, tuple(colour)) for path, colour
             in zip(row.get_paths(), row.get_facecolors(), strict=True)] for row in ax.collections]


def colours(names):
    return {plt.matplotlib.colors.to_rgba(colour): name for name, colour in names.items()}


@pytest.fixture(autouse=True)
def style():
    with plt.style.context("helpers.course"):
        yield


@pytest.fixture(scope="module")
def draw():
    """The explorer's picture of n_devices, batch, parameters, output, uses, link."""
    with plt.style.context("helpers.course"):
        draw = explorer.data_parallel_explorer().draw
    return lambda *case, uses=1, link="PCIe, 12 GB/s": draw(*case, uses, link)


@pytest.mark.parametrize("case", [(1, 1, 1_000_000, 1, 1), (4, 64, 25_000_000, 1000, 100), (4, 9, 1_000_000, 10, 1),
                                  (8, 256, 10**9, 10**7, 1000), (8, 5, 10**9, 1, 1)], ids=str)
@pytest.mark.parametrize("link", explorer.LINKS)
def test_the_pictures_show_the_models(case, link, draw):
    n_devices, batch, parameters, output, uses = case
    above, below = draw(n_devices, batch, parameters, output, uses=uses, link=link).axes
    held = explorer.memory(batch, n_devices, 4 * parameters, explorer.INPUT + uses * explorer.PER_USE, 4 * output)
    unit = 2**30 if above.get_xlabel() == "GiB held" else 2**20
    for row, kinds in zip(bars(above), held, strict=True):
        shows = {colours(explorer.KINDS)[colour]: (end - begin) * unit for begin, end, colour in row}
        assert shows == pytest.approx(kinds, abs=1)
    events = explorer.timeline(batch, n_devices, 4 * parameters, 4 * output, uses, explorer.LINKS[link])
    for device, row in enumerate(bars(below)):
        shows = [(device, colours(explorer.PHASES)[colour], begin, end) for begin, end, colour in row]
        assert shows[0][1:] == ("waits", 0, pytest.approx(events[-1][3]))
        wanted = [event for event in events if event[0] == device]
        assert [event[:2] for event in shows[1:]] == [event[:2] for event in wanted]
        assert [event[2:] for event in shows[1:]] == [pytest.approx(event[2:]) for event in wanted]


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


def test_the_picture_says_what_is_assumed_and_who_is_idle(draw):
    figure = draw(4, 9, 1_000_000, 10)
    above, below = figure.axes
    said = " ".join(text.get_text() for text in figure.texts)
    assert "nothing in it is measured" in said.replace("\n", " "), "model and measurement are told apart"
    assert "checked against counted tensors" in said
    assert [text.get_text() for text in above.texts].count("no samples: idle") == 1
    assert "chunks of 3, 3, 3" in above.get_title("left") and "chunks of 3, 3, 3" in alt(figure)
    assert below.get_xlabel() == "ms since the step began" and above.get_xlabel() == "MiB held"


def test_measurements_are_drawn_by_the_same_functions():
    _, ax = plt.subplots()
    explorer.draw_memory(ax, [{"weights": 2**20, "optimizer": 2**21}, {"weights": 2**20}])
    assert [text.get_text() for text in ax.texts] == ["3 MiB", "1 MiB"]
    assert alt(ax.figure) == "What each device holds: device 0 3 MiB; device 1 1 MiB."
    _, ax = plt.subplots()
    explorer.draw_timeline(ax, [(0, "forward", 0, 30), (1, "forward", 0, 10)], 2)
    assert alt(ax.figure) == "What each device does: device 0 busy for 30 ms; device 1 busy for 10 ms, of 30 ms."
    plt.close("all")


def test_controls_redraw():
    widget = explorer.data_parallel_explorer()
    seen = {widget.picture.value}
    for name, value in (("n_devices", 3), ("batch", 7), ("parameters", 1_000_000), ("output", 1_000_000), ("uses", 1),
                        ("link", "NVLink, 100 GB/s")):
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


def test_the_worker_is_a_script(capsys):
    runpy.run_path(str(LESSONS / "data_parallel" / "real_data_parallel.py"), run_name="__main__")
    assert said(capsys.readouterr().out.splitlines())["same gradient"] == "True"
