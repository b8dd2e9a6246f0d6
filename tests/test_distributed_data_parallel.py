"""Lesson 05: its project under crashes, its traces, its pictures of collectives, and what learners write in earnest."""

import os
import socket
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers import RankError, launch
from helpers.exercises import distributed_data_parallel as ex
from helpers.traces import read
from helpers.widgets import collectives
from tests.conftest import ROOT

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or else each rank would import this file, and pytest
pytestmark = pytest.mark.usefixtures("nothing_left")


# ------------------------------------------------------------------------------------------------------- the project


def project(*args, nprocs=2):
    return launch("ddp_project.py", nprocs, args=[*map(str, args)], show=False, timeout=60)


def weights(path):
    return torch.load(path)["model"]


def same(one, other):
    return all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The snapshot of four epochs without an interruption."""
    path = tmp_path_factory.mktemp("project") / "whole.pt"
    run = project(path, "--epochs", 4)
    return path, run


def test_project_learns_and_says_so_once(whole):
    path, run = whole
    lines = run.logs[0].splitlines()
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}" for number in range(4)] and run.logs[1] == ""
    assert int(lines[-1].split("%")[0].split()[-1]) > 75
    assert os.listdir(path.parent) == ["whole.pt"]
    for rows in run.reports:
        assert rows[-1]["epoch"] == 3 and len({row["step"] for row in rows}) == len(rows) / 4
    assert run.reports[0][0]["loss"] != run.reports[1][0]["loss"], "each rank reports the loss of its own images"


def test_project_resumes_after_a_crash_and_ignores_half_a_snapshot(whole, tmp_path):
    path = tmp_path / "again.pt"
    with pytest.raises(RankError, match="SIGKILL") as caught:
        project(path, "--epochs", 4, "--die-in-epoch", 1)
    assert caught.value.rank == 1 and torch.load(path)["epoch"] == 0
    (tmp_path / "again.pt.unfinished").write_bytes(whole[0].read_bytes()[:100])
    run = project(path, "--epochs", 4)
    assert run.logs[0].startswith("epoch 1:") and same(weights(whole[0]), weights(path))


def test_project_that_is_finished_does_nothing(whole):
    before = whole[0].read_bytes()
    assert project(whole[0], "--epochs", 4).logs[0] == "" and whole[0].read_bytes() == before


@pytest.mark.parametrize("nprocs", [1, 3])
def test_project_on_other_numbers_of_ranks_and_without_a_file(nprocs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = project("--epochs", 1, nprocs=nprocs)
    assert "epoch 0" in run.logs[0] and os.listdir(tmp_path) == []


def test_project_in_processes_as_torchrun_starts_them(whole, tmp_path):
    """tests/test_torchrun.py runs torchrun itself; what it gives to a script is this environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, ROOT / "helpers/workers/ddp_project.py", tmp_path / "a.pt", "--epochs", "4"]
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
             "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen(command, env={**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "epoch 3" in outputs[0] and same(weights(whole[0]), weights(tmp_path / "a.pt"))


# ------------------------------------------------------------------------------------------------------------- traces


def test_traces_of_all_ranks_show_the_overlap(tmp_path):
    small = ["--width", 256, "--layers", 4, "--batch", 64, "--bucket-mb", 0.25]
    launch("ddp_trace.py", 2, args=[str(tmp_path), *small], show=False, timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["ddp-0.json", "ddp-1.json", "naive-0.json", "naive-1.json"]
    traces = {path.stem: read(path) for path in tmp_path.glob("*.json")}
    for rank in (0, 1):
        naive, ddp = traces[f"naive-{rank}"], traces[f"ddp-{rank}"]
        assert naive.rank == ddp.rank == rank and len(naive.steps) == len(ddp.steps) == 2
        assert naive.overlap() < 0.05

        def sent(trace):
            return sum(event.kind == "communication" for event in trace.events)

        assert sent(naive) == 2 * 8 and sent(ddp) == 2 * 4, "eight parameters; a bucket for each layer"
    assert max(traces[f"ddp-{rank}"].overlap() for rank in (0, 1)) > 0.05


# ----------------------------------------------------------------------------------------------------------- pictures


BEFORE = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
AFTER = {
    "broadcast": [[[1, 2, 3]]] * 3, "all_reduce": [[111, 222, 333]] * 3, "gather": [BEFORE, None, None],
    "all_gather": [BEFORE] * 3, "scatter": [[1], [2], [3]], "barrier": BEFORE,
}


def texts(picture):
    return [element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("name", AFTER)
def test_a_collective_is_drawn_legibly(name):
    picture = collectives.draw(name, BEFORE, AFTER[name])
    root, shown = ElementTree.fromstring(picture), texts(picture)
    assert root.get("role") == "img" and f"{name}: rank 0 held 1, 2, 3 and then" in root.get("aria-label")
    assert collectives.WORDS[name] in shown and shown.count("nothing") == AFTER[name].count(None)
    numbers = [text for text in shown if text.isdigit()]
    held = [number for rank in AFTER[name] if rank for part in collectives._groups(rank) for number in part]
    assert sorted(map(int, numbers)) == sorted([*(number for rank in BEFORE for number in rank), *held])
    assert min(int(element.get("font-size", 16)) for element in root.iter()) >= 14
    boxes = [element for element in root.iter() if element.tag.endswith("rect")]
    assert all(float(box.get("x", 0)) + float(box.get("width")) <= 960 for box in boxes)


def test_colours_show_the_origin_and_sums_are_dark():
    picture = collectives.draw("all_to_all", BEFORE, [[1, 10, 100], [2, 20, 200], [3, 30, 303]])
    fills = [box.get("fill") for box in ElementTree.fromstring(picture).iter() if box.tag.endswith("rect")][1:]
    assert len(fills) == 18 and fills.count("#333") == 1 and len(set(fills)) == 4


def test_four_ranks_still_fit():
    before = [[10 ** rank * place for place in range(1, 5)] for rank in range(4)]
    boxes = [box for box in ElementTree.fromstring(collectives.draw("all_gather", before, [before] * 4)).iter()
             if box.tag.endswith("rect")]
    assert max(float(box.get("x", 0)) + float(box.get("width")) for box in boxes) <= 960


def test_names_are_escaped_and_nonsense_is_refused():
    assert "&lt;mine&gt;" in collectives.draw("<mine>", [[1]], [[1]])
    for before, after in (([], []), ([[1]], [[1], [1]])):
        with pytest.raises(ValueError, match="lists by rank"):
            collectives.draw("broadcast", before, after)


def test_explorer_answers_quickly():
    explorer = collectives.collectives_explorer({name: (BEFORE, after) for name, after in AFTER.items()}, "gather")
    seen, took = {explorer.picture.value}, []
    for name in AFTER:
        began = time.perf_counter()
        explorer.controls["name"].value = name
        took.append(time.perf_counter() - began)
        seen.add(explorer.picture.value)
    assert len(seen) == len(AFTER) and statistics.median(took) < 0.05
    bundle = explorer._repr_mimebundle_()
    assert "data:image/svg+xml" in bundle["text/html"] and "Laboratory of collectives" in bundle["text/plain"]


# ------------------------------------------------------------------------------------------- answers of other kinds


def in_batches(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.nn.functional.pad(tensor, (0, -len(tensor) % n)).chunk(n))  # padded
    for step in range(2 * (n - 1)):
        place = (rank - step - 1) % n
        give, take = chunks[(rank - step) % n].clone(), torch.empty_like(chunks[place])
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, give, (rank + 1) % n),
                                        dist.P2POp(dist.irecv, take, (rank - 1) % n)])
        for work in works:
            work.wait()
        chunks[place] = chunks[place] + take if step < n - 1 else take
    tensor.copy_(torch.cat(chunks)[:len(tensor)])


def even_ranks_send_first(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        give, take = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        received = torch.empty_like(take)
        if rank % 2 == 0:
            dist.send(give, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        if rank % 2:
            dist.send(give, (rank + 1) % n)
        take[:] = take + received if step < n - 1 else received


@pytest.mark.parametrize("answer", [in_batches, even_ranks_send_first])
def test_other_rings_are_right_too(answer):
    assert ex.ring_all_reduce.check(answer)


def test_one_flat_all_reduce_is_right_too():
    def average_gradients(model):
        trained = [p for p in model.parameters() if p.requires_grad]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.grad = part.view_as(p).clone()

    assert ex.average_gradients.check(average_gradients)


def test_accuracy_as_a_tensor_is_right_too():
    def exact_accuracy(model, dataset):
        rows = range(dist.get_rank(), len(dataset), dist.get_world_size())
        right = torch.tensor(sum(int(model(dataset[i][0]).argmax() == dataset[i][1]) for i in rows))
        dist.all_reduce(right)
        return right / len(dataset)

    assert ex.exact_accuracy.check(exact_accuracy)


def test_averaging_by_hand_after_no_sync_is_right_too():
    def accumulate(model, optimizer, batches, loss_fn):
        optimizer.zero_grad()
        with model.no_sync():
            for x, y in batches:
                (loss_fn(model(x), y) / len(batches)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()

    assert ex.accumulate.check(accumulate)


def too_long(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(tensor, (rank + 1) % n)
    dist.recv(torch.empty(2, dtype=tensor.dtype), (rank - 1) % n)
    sending.wait()


def nobody_waits(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        received = torch.zeros_like(chunks[(rank - step - 1) % n])
        dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
        dist.irecv(received, (rank - 1) % n)
        chunks[(rank - step - 1) % n].copy_(received)


def gathers_objects(tensor):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, tensor)
    tensor.copy_(sum(everything))


@pytest.mark.parametrize("answer, said", [
    (too_long, "was sent 96 bytes where it expected 16"),
    (nobody_waits, "is waited for before its tensor is used"),
    (gathers_objects, "it called `all_gather`"),
    (lambda tensor: dist.send(tensor, dist.get_rank()), "ValueError"),
    (lambda tensor: tensor.data.zero_(), "values that belong to other elements, or to none"),
])
def test_rings_that_go_wrong_in_other_ways(answer, said):
    began = time.monotonic()
    feedback = ex.ring_all_reduce.check(answer)
    assert feedback.status == "not yet" and said in repr(feedback), feedback
    assert time.monotonic() - began < 15


def test_a_loop_without_end_is_ended_and_the_others_are_said_to_have_returned(monkeypatch):
    monkeypatch.setattr(type(ex.ring_all_reduce), "timeout", 1)

    def ring_all_reduce(tensor):
        while dist.get_rank() == 1:
            time.sleep(0.01)

    feedback = ex.ring_all_reduce.check(ring_all_reduce)
    assert "rank 0 had returned" in repr(feedback) and "rank 1 was at" in repr(feedback), feedback


def test_a_snapshot_in_another_format_is_not_read():
    def save_snapshot(state, path):
        if dist.get_rank() == 0:
            import pickle

            with open(f"{path}.new", "wb") as file:
                pickle.dump(state, file)
            os.replace(f"{path}.new", path)
        dist.barrier()

    assert ex.save_snapshot.check(save_snapshot).status == "not yet"


def test_what_a_rank_prints_is_not_taken_for_a_snapshot():
    def save_snapshot(state, path):
        print("saving " * 20_000)
        type(ex.save_snapshot).answer(state, path)

    feedback = ex.save_snapshot.check(save_snapshot)
    assert "rank 1 printed more than this check can hold" in repr(feedback), feedback
