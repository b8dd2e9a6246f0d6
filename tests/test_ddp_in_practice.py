"""DDP in practice: its two training scripts, whole and under crashes."""

import inspect
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers import RankError, launch
from helpers.places import LESSONS

pytestmark = pytest.mark.usefixtures("nothing_left")
HERE = LESSONS / "ddp_in_practice"


def train(*args, script="train.py", nprocs=2):
    return launch(HERE / script, nprocs, args=[*map(str, args)], show=False, timeout=60)


def same(one, other):
    """Whether two snapshots hold the same bits: weights, momentum, schedule, scale, random states."""
    return torch.testing.assert_close(torch.load(one), torch.load(other), rtol=0, atol=0) is None


EPOCHS = "--epochs", 2, "--fp16"


@pytest.fixture(scope="module", params=["train.py", "train_one.py"])
def whole(request, tmp_path_factory):
    """A script, its ranks, and the snapshot of two epochs without an interruption."""
    path, nprocs = tmp_path_factory.mktemp("whole") / "whole.pt", 1 + (request.param == "train.py")
    return request.param, nprocs, path, train(path, *EPOCHS, script=request.param, nprocs=nprocs)


def test_it_learns_and_says_so_once(whole):
    _, nprocs, path, run = whole
    first, *lines = run.logs[0].splitlines()
    assert ["one process, on ", "2 rank(s) over "][nprocs - 1] in first
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert not any(run.logs[1:]), "rank 0 alone speaks"
    assert int(lines[-1].split("%")[0].split()[-1]) > 75
    assert os.listdir(path.parent) == ["whole.pt"]
    for rows in run.reports:
        assert (rows[-1]["epoch"], rows[-1]["step"]) == (1, 22), "23 steps, however many ranks"
    losses = {rows[0]["loss"] for rows in run.reports}
    assert len(losses) == nprocs, "each rank has images of its own"


def test_killed_it_ends_with_the_same_bits_and_ignores_half_a_snapshot(whole, tmp_path):
    script, nprocs, path, _ = whole
    again = tmp_path / "again.pt"
    with pytest.raises(RankError, match="SIGKILL"):
        train(again, *EPOCHS, "--die-in-epoch", 1, script=script, nprocs=nprocs)
    assert torch.load(again)["epoch"] == 0
    (tmp_path / "again.pt.unfinished").write_bytes(path.read_bytes()[:100])
    run = train(again, *EPOCHS, script=script, nprocs=nprocs)
    assert run.logs[0].splitlines()[1].startswith("epoch 1:") and same(path, again)
    before = path.read_bytes()
    run = train(path, *EPOCHS, script=script, nprocs=nprocs)
    assert "epoch" not in run.logs[0] and path.read_bytes() == before, "finished, it does nothing"


def test_what_ddp_wraps_is_compiled():
    """The other way round, torch compiles nothing of a bare `nn.Sequential`, and there is no error."""
    with pytest.raises(RankError, match="no_such_backend"):
        train("--epochs", 1, "--compile", "no_such_backend")


def compiled_in_place(kind):
    dist.init_process_group("gloo")
    compiled = []

    def eager(graph, inputs):
        compiled.append(graph)
        return graph

    net = kind(nn.Linear(2, 2))
    net.compile(backend=eager)
    DistributedDataParallel(net)(torch.ones(1, 2)).sum().backward()
    return len(compiled)


class Own(nn.Sequential):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.long
def test_compile_of_the_network_itself_depends_on_its_class_and_the_version():
    assert launch(compiled_in_place, 1, args=(Own,), show=False).results == [1]
    bare = 0 if torch.__version__.startswith("2.11.") else 1
    assert launch(compiled_in_place, 1, args=(nn.Sequential,), show=False).results == [bare]


def test_the_argument_that_keeps_buffers_apart_has_the_name_that_the_lesson_gives():
    since_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    name = "forward_sync_buffers" if since_2_13 else "broadcast_buffers"
    assert name in inspect.signature(DistributedDataParallel).parameters


def with_batchnorm():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.BatchNorm1d(1))
    x = torch.tensor([[-1.0], [1.0]]) + dist.get_rank()
    model(x).sum().backward()
    model.eval()
    with torch.no_grad():
        plain, first = model.module(x * 0)[0].item(), model(x * 0)[0].item()
        model.module.running_mean += dist.get_rank()
        return plain, first, model(x * 0)[0].item()


def with_no_sync():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.BatchNorm1d(1))
    x = torch.tensor([[-1.0], [1.0]]) + dist.get_rank()
    with model.no_sync():
        model(x).sum().backward()
    means = []
    for _ in range(2):
        model(x * 0).sum().backward()
        means.append(model.module.running_mean.item())
    return means


def test_buffers_are_not_overwritten_after_a_forward_in_no_sync():
    (first, second), (others_first, others_second) = launch(with_no_sync, 2, show=False).results
    assert first != others_first and second == others_second


def test_after_a_step_the_plain_networks_differ_and_only_the_first_forward_of_a_test_changes_that():
    plain, first, second = zip(*launch(with_batchnorm, 2, show=False).results, strict=True)
    assert plain[0] != plain[1] and first[0] == first[1] and second[0] != second[1]


@pytest.mark.long
def test_compiled_and_without_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = train("--epochs", 1, "--compile", "aot_eager", nprocs=1)
    assert "epoch 0" in run.logs[0] and os.listdir(tmp_path) == []


def test_train_is_train_one_but_for_a_few_lines_and_each_is_one_page():
    one, many = ((HERE / name).read_text().splitlines() for name in ("train_one.py", "train.py"))
    assert len(one) < 100 and len(set(one) - set(many)) < 20
