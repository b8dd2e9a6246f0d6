"""Lesson 04: the stand-in for nn.DataParallel against torch's parts, the explorer's models, the worker."""

import importlib
import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from helpers import launch
from helpers.hardware import hardware
from helpers.instruments.memory import held_bytes
from lessons.data_parallel import exercises as ex
from lessons.data_parallel import pictures
from lessons.data_parallel import replicas_explorer as explorer
from lessons.data_parallel.exercises.device_memory import counted_step, replica_of
from lessons.data_parallel.exercises.nested_values import made, shown
from lessons.data_parallel.exercises.scatter_and_gather import Replica
from tests.conftest import shapes_of

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
    for what, (plan, samples, n_devices) in ex.scatter_and_gather.cases.items():
        inputs = made(plan, samples, start=1)
        ours, theirs = ([Replica(device) for device in range(n_devices)] for _ in range(2))
        joined = ex.scatter_and_gather.answer(ours, inputs)
        _, parts = torch_scatter_gather.scatter_kwargs((), inputs, range(n_devices))
        outputs = [replica(**part) for replica, part in zip(theirs, parts, strict=False)]
        assert [replica.given for replica in ours] == [replica.given for replica in theirs], what
        assert shown(joined) == shown(torch_scatter_gather.gather(outputs, 0)), what


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


def test_the_formula_of_memory_is_what_a_step_puts_on_each_device():
    model, batch = nn.Sequential(nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 24)), torch.rand(9, 16)
    [one] = counted_step(model, batch[:1], 1, 2)
    held = explorer.memory(9, 4, one["weights"], one["activations"], one["output"])
    output, labels = model(batch), torch.zeros(9, dtype=torch.long)
    with held_bytes() as alive:
        loss = nn.functional.cross_entropy(output, labels)
    for device, counted in enumerate(counted_step(model, batch, 4, 2)):
        kept = alive.now - loss.nbytes if device == 0 else 0
        counted["outputs"] = counted.pop("output") + counted.pop("gathered") + kept
        assert held[device] == pytest.approx(counted, abs=4)  # the loss keeps a number besides


LINK = "PCIe 4, copies in turn"
CASES = [(4, 64, 1000, 100, LINK), (8, 9, 1000, 100, "PCIe 4, NCCL"), (2, 256, 10**6, 1, "NVLink 4, NCCL"),
         (8, 256, 10**6, 1000, LINK)]


def shapes(case, frame):
    return shapes_of(explorer.scene(*case)["frames"][frame])


@pytest.mark.parametrize("case", CASES)
def test_in_the_end_devices_hold_what_the_formula_says(case):
    step, last = explorer.Step(*case), shapes(case, -1)
    for device, kinds in enumerate(step.held):
        held = explorer.held_at(step, device, step.end)
        assert held == pytest.approx(kinds)
        total = sum(kinds.values())
        assert last[f"total {device}"]["text"] == explorer.written_size(total)
        if total:
            high = {kind: last[f"{kind} {device}"]["h"] for kind in kinds if kinds[kind]}
            assert high == pytest.approx({kind: kinds[kind] / total * sum(high.values()) for kind in high})


def test_before_the_step_only_device_0_holds_anything():
    step = explorer.Step(*CASES[0])
    held = [sum(explorer.held_at(step, device, 0).values()) for device in range(4)]
    assert held == [3 * explorer.WEIGHTS, 0, 0, 0]  # weights, and the two tensors of Adam


@pytest.mark.parametrize("case", CASES)
def test_lanes_show_the_model(case):
    step, made = explorer.Step(*case), explorer.scene(*case)
    axis = made["axis"]
    scale = axis["w"] / axis["to"]
    last = {shape["id"]: shape for shape in made["frames"][-1]["shapes"]}
    for device in step.devices:
        times = Counter()
        for number, phase, begin, end in step.events:
            times[phase] += (end - begin) * (number == device)
        for phase, took in times.items():
            if took:
                assert last[f"{device} {phase}"]["w"] == pytest.approx(took * scale, abs=1e-6)
        assert last[f"{device} waits"]["w"] == pytest.approx(step.total * scale)
    assert last[f"{len(step.held)} backward"]["w"] < axis["w"]
    assert f"{step.alone[-1][3] / step.total:.2f} times the speed" in made["frames"][-1]["title"]


def test_what_travels_comes_from_the_device_that_has_it():
    def sources(case, phase):
        frames = explorer.scene(*case)["frames"]
        messages = [shape for frame in frames for shape in frame["shapes"] if shape["id"].startswith(f"{phase} to")]
        pitch = explorer.WIDTH / case[0]
        return {int(one["id"][-1]): int((one["from"]["x"] + one["w"] / 2) / pitch) for one in messages}

    in_turn, nccl = CASES[0], (4, 64, 1000, 100, "PCIe 4, NCCL")
    assert sources(in_turn, "replicate") == {1: 0, 2: 0, 3: 0} and sources(nccl, "replicate") == {1: 0, 2: 1, 3: 2}
    assert sources(in_turn, "reduce") == sources(nccl, "gather") == {1: 1, 2: 2, 3: 3}


def test_frames_say_who_works_and_who_waits():
    does = [[shape["text"] for shape in frame["shapes"] if shape["id"].startswith("does")]
            for frame in explorer.scene(*CASES[0])["frames"]]
    assert does[0] == [] and does[3] == ["copies", "waits", "copies", "waits"]
    assert does[6] == ["computes"] * 4
    idle = shapes((4, 5, 1000, 100, LINK), -1)
    assert [idle[f"samples {device}"]["text"] for device in range(4)] == ["2 of 5", "2 of 5", "1 of 5", "idle"]


def test_presets():
    stage = explorer.data_parallel_explorer()
    titles = {}
    for preset in stage.story["presets"]:
        frames = stage.story["scenes"][json.dumps(preset["setting"], separators=(",", ":"))]["frames"]
        titles[preset["words"]] = frames[-1]["title"]
        assert "speed" not in frames[0]["title"]
    assert list(titles) == ["a small batch", "many outputs", "fast links", "5 samples"]
    assert "times the speed" in titles["a small batch"] and float(titles["a small batch"].split()[-4]) < 0.5
    assert float(titles["fast links"].split()[-4]) > 3


@pytest.mark.parametrize("events", [explorer.timeline(64, 4, 100e6, 4000, 100)])
def test_the_lessons_pictures_have_words(events):
    for draw, arguments in ((pictures.draw_timeline, (events, 4)),
                            (pictures.draw_memory, (explorer.memory(64, 4, 10**8, 10**6, 4000),))):
        ax = Figure().subplots()
        draw(ax, *arguments)
        assert "device 3" in ax.figure.get_label() and len(ax.get_yticks()) == 4


# ------------------------------------------------------------------------------------------------- the worker


def test_the_worker_tells_what_the_library_does():
    gpus = hardware.usable_gpus
    run = launch("real_data_parallel.py", nprocs=1, gpus=gpus, show=False, timeout=120)
    log = dict(line.split(": ", 1) for line in run.logs[0].splitlines())
    assert float(log["largest difference of the gradients"]) < 1e-12
    assert log["first name in its state dict"] == "module.layers.0.weight"
    if gpus > 1:
        sizes = [size for size in explorer.chunk_sizes(5, gpus) if size]
        assert log["batch sizes that forward saw"] == str(sizes)
        assert log["shape of a scalar loss"] == str([len(sizes)])
        assert "input tensors were scalars" in log["torch warns"]
    else:
        assert log["batch sizes that forward saw"] == "[5]" and log["shape of a scalar loss"] == "[]"
        assert log["torch warns"] == "nothing"


def test_both_scripts_train_the_same_weights():
    weights = [torch.tensor(launch(script, nprocs=nprocs, show=False, timeout=60).results[0][0]["weights"])
               for script, nprocs in (("train_dp.py", 1), ("train_ddp.py", 2))]
    assert torch.allclose(*weights, atol=1e-5) and weights[0].abs().max() > 0.5


# --------------------------------------------------------------------- what the lesson says of torch, and its model


def test_torch_recommends_ddp_and_warns_of_scalars():
    assert "It is recommended to use :class:`~torch.nn.parallel.DistributedDataParallel`" in nn.DataParallel.__doc__
    scalar = torch.zeros((), device="meta")
    with (pytest.warns(UserWarning, match="scalars"),
          pytest.raises(Exception, match=r".")):  # after the warning: on no GPU there is nothing to gather
        torch.nn.parallel._functions.Gather.apply("cpu", 0, scalar)


def test_a_new_thread_does_not_know_the_dtype_of_autocast():
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(torch.get_autocast_dtype, "cuda").result()
    torch.set_autocast_dtype("cuda", before)
    assert before == there == torch.float16


def test_the_models_numbers_that_the_text_says():
    in_turn, nccl = (explorer.timeline(64, 4, 100e6, 4000, 100, *explorer.LINKS[name])
                     for name in ("PCIe 4, copies in turn", "PCIe 4, NCCL"))
    alone = explorer.timeline(64, 1, 100e6, 4000, 100)[-1][3]
    sends = sum(end - begin for device, phase, begin, end in nccl if device == 0 and phase in ("replicate", "reduce"))
    assert f"{sends / nccl[-1][3]:.0%}" == "60%" and f"{alone / nccl[-1][3]:.1f}" == "1.2"
    assert f"{alone:.0f}" == "16" and alone < in_turn[-1][3]
    assert [speed for speed, _ in explorer.LINKS.values()] == [25e9, 25e9, 350e9]
