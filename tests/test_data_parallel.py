"""Lesson 04: the stand-in for nn.DataParallel against torch's own parts, the models behind the explorer, the worker."""

import importlib
import itertools
import runpy
import time
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

from helpers import launch
from helpers.exercises import data_parallel as ex
from helpers.exercises.data_parallel import _data_parallel, _plain, _replica, counted
from helpers.hardware import hardware
from helpers.launcher.arguments import WORKERS
from helpers.widgets import data_parallel as explorer

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
    for what, inputs, n_devices in ex._to_scatter(torch):
        ours = ex.scatter_nested.answer(inputs, n_devices)
        theirs = torch_scatter_gather.scatter(inputs, range(n_devices))
        assert [_plain(part) for part in ours] == [_plain(part) for part in theirs], what


def test_gather_is_the_librarys(library):
    for what, outputs in ex._to_gather(torch):
        assert _plain(ex.gather_nested.answer(outputs)) == _plain(torch_scatter_gather.gather(outputs, 0)), what


REPLICATE = {"ours": lambda model, number: [_replica(model, device) for device in range(number)],
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
    assert torch.equal(_replica(model, 1)(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_what_each_replica_prints_is_kept_apart():
    class Prints(nn.Module):
        def forward(self, x):
            for _ in range(50):
                print(len(x), end=" ")
                time.sleep(0.0001)
            return x

    _, printed = _data_parallel(Prints(), torch.rand(5, 2), 4)
    assert printed == ["2 " * 50, "2 " * 50, "1 " * 50]


# ------------------------------------------------------------------------------------- right answers of another making


@pytest.mark.parametrize("head", [
    (nn.Flatten(), nn.Linear(64 * 32 * 32, 10)),
    (nn.MaxPool2d(32), nn.Flatten(), nn.Linear(64, 10)),
    (nn.AvgPool2d(8), nn.Flatten(), nn.Linear(1024, 10)),
    (nn.Conv2d(64, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
], ids=["all numbers", "max", "coarse", "convolution"])
def test_other_repairs_of_the_cnn(head):
    def small_cnn():
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                             *head)

    feedback = ex.small_cnn.check(small_cnn)
    if isinstance(head[0], nn.Conv2d):  # works, but the convolutions were to stay as they are
        assert not feedback and "the convolutions have changed" in feedback.observed
    else:
        assert feedback, feedback


def test_other_repairs_of_forward():
    def by_sequential(self, x):
        print(x.shape)
        return nn.Sequential(*self.layers)(x)

    assert ex.forward.check(by_sequential)


def test_prefix_by_torchs_own_tool():
    def without_prefix(state):
        from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

        state = dict(state)
        consume_prefix_in_state_dict_if_present(state, "module.")
        return state

    assert ex.without_prefix.check(without_prefix)


# ------------------------------------------------------------------------------------------- the models of the explorer


def test_chunk_sizes_are_torchs():
    for batch, n_devices in itertools.product(range(1, 41), range(1, 9)):
        sizes = [len(chunk) for chunk in torch.zeros(batch).chunk(n_devices)]
        assert explorer.chunk_sizes(batch, n_devices) == sizes + [0] * (n_devices - len(sizes))


@pytest.mark.parametrize("batch, n_devices", [(0, 2), (-1, 2), (4, 0)])
def test_chunk_sizes_refuse(batch, n_devices):
    with pytest.raises(ValueError, match="1 or more"):
        explorer.chunk_sizes(batch, n_devices)


@pytest.mark.parametrize("batch, n_devices, states", [(8, 4, 2), (5, 4, 0), (9, 4, 1), (1, 3, 2), (7, 2, 1),
                                                      (6, 1, 2)])
def test_memory_is_what_was_counted(batch, n_devices, states):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24))
    samples = torch.rand(batch, 16)
    one = counted(model, samples[:1], 1, 0)[0]
    computed = explorer.memory(batch, n_devices, one["weights"], one["activations"], one["output"], states)
    for device, (mine, real) in enumerate(zip(computed, counted(model, samples, n_devices, states), strict=True)):
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


@pytest.mark.parametrize("of", (1, 2, 4, 8))
def test_timeline_makes_sense(of):
    for case in CASES:
        if case[0] == of:
            check_timeline(case)


def check_timeline(case):
    n_devices, batch, parameters, output, uses = case
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
    for device, share in explorer.shares(events).items():
        assert 0 < share <= 1 + 1e-9, device


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
    assert f"{speed():.2f} times the speed" in texts(explorer.draw(4, 64, 25_000_000, 1000, 100))[0]
    held = explorer.memory(64, 4, weights, explorer.INPUT + 100 * explorer.PER_USE, 4000)
    assert f"Device 0 holds {explorer._size(sum(held[0].values()))}, device 1" in " ".join(
        texts(explorer.draw(4, 64, 25_000_000, 1000, 100)))


def texts(picture):
    return [element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("link", explorer.LINKS)
@pytest.mark.parametrize("of", (1, 2, 4, 8))
def test_every_choice_is_drawn_legibly(of, link):
    for case in CASES:
        if case[0] == of:
            check_drawing(case, link)


def check_drawing(case, link):
    began = time.perf_counter()
    picture = explorer.draw(*case, link)
    seconds = time.perf_counter() - began
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img" and f"{case[1]} samples" in root.get("aria-label")
    assert min(int(element.get("font-size", 16)) for element in root.iter()) >= 14
    assert all(len(text) <= 130 for text in texts(picture))
    assert any("nothing in it is measured" in text for text in texts(picture)), "model and measurement are told apart"
    assert any("checked against counted tensors" in text for text in texts(picture))
    width, height = (float(number) for number in root.get("viewBox").split()[2:])
    for element in root.iter():
        if element.tag.endswith("rect") and element.get("x"):
            assert 0 <= float(element.get("x")) and float(element.get("width")) >= 0
            assert float(element.get("x")) + float(element.get("width")) <= width
            assert float(element.get("y")) + float(element.get("height")) <= height
    assert seconds < 0.1


def test_idle_devices_are_named():
    picture = explorer.draw(4, 9, 1_000_000, 10)
    assert texts(picture).count("no samples: idle") == 1
    assert "chunks of 3, 3, 3" in texts(picture)[0]


def test_measurements_are_drawn_by_the_same_functions():
    held = [{"weights": 2**20, "optimizer": 2**21}, {"weights": 2**20}]
    assert {"3 MiB", "1 MiB", "Counted & shown"} <= set(texts(explorer.draw_memory(held, "Counted & shown")))
    picture = explorer.draw_timeline([(0, "forward", 0, 30), (1, "forward", 0, 10)], 2, "Measured")
    assert 'aria-label="Measured: device 0 busy for 30 ms; device 1 busy for 10 ms, of 30 ms"' in picture


def test_controls_redraw():
    widget = explorer.data_parallel_explorer()
    seen = {widget.picture.value}
    for name, value in (("n_devices", 3), ("batch", 7), ("parameters", 1_000_000), ("output", 1_000_000), ("uses", 1),
                        ("link", "NVLink, 100 GB/s")):
        widget.controls[name].value = value
        seen.add(widget.picture.value)
    assert len(seen) == 7
    bundle = widget._repr_mimebundle_()
    assert bundle["text/plain"].startswith("DataParallel explorer") and "data:image/svg+xml" in bundle["text/html"]


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
        assert len(run.results[0]) == 2
    else:
        assert log["batch sizes that forward saw"] == "[5]" and log["shape of a scalar loss"] == "[]"
        assert log["torch warns"] == "nothing" and run.results[0] == []


def test_the_worker_is_a_script(capsys):
    runpy.run_path(str(WORKERS / "real_data_parallel.py"), run_name="__main__")
    assert said(capsys.readouterr().out.splitlines())["same gradient"] == "True"
