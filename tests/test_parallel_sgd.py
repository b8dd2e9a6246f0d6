"""Lesson 02: what its trainers refuse, how they split the data, a worker that dies, the explorer's model."""

import json
import math
import re
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers import RankError, launch
from helpers.data import DataError, load
from lessons.parallel_sgd import convergence_explorer as explorer
from lessons.parallel_sgd.ranks import one_pass
from lessons.parallel_sgd.shards import (
    _stored,
    batches,
    labels_of,
    skewed_split,
    split,
    tensors,
    transform,
)
from lessons.parallel_sgd.task import TASKS
from tests.conftest import ROOT, cells_of

pytestmark = pytest.mark.usefixtures("nothing_left")

SPAWNERS = ["sgd_hogwild.py", "sgd_published.py"]


def trained(script, workers=2, *args, timeout=240):
    """Launch a trainer; return its reported rows."""
    if script in SPAWNERS:
        args = ("--workers", str(workers), *args)
    run = launch(script, 1 if script in SPAWNERS else workers, [*map(str, args)], show=False, timeout=timeout)
    return [row for row in run.reports[0] if "accuracy" in row], run


# --------------------------------------------------------------------------------------------------- trainers


def test_a_trainer_learns_and_every_rank_holds_the_averaged_model():
    """The lesson runs all trainers, and compares the weights of those that are to agree."""
    rows, run = trained("sgd_every_k.py", 2, "--every", 7, "--epochs", 2)
    assert [row["epoch"] for row in rows] == [1, 2] and all(row["seconds"] > 0 for row in rows)
    assert rows[-1]["accuracy"] > 0.7 and rows[-1]["loss"] < 1
    assert rows[0]["loss"] == pytest.approx(run.reports[1][0]["loss"], abs=1e-6)


@pytest.mark.long
def test_published_program_needs_both_bugs():
    rows, _ = trained("sgd_published.py", 3, "--epochs", 2, "--lr", 0.01)
    losses = [row["loss"] for row in rows]
    honest, repeated, shared, both = losses[0:2], losses[2:4], losses[4:6], losses[6:8]
    assert honest == pytest.approx(repeated, abs=1e-6), "every repetition begins where the first one did"
    assert shared[-1] < 0.6 * honest[-1] and both[-1] < 0.9 * shared[-1]
    staying, _ = trained("sgd_staying.py", 3, "--epochs", 2, "--lr", 0.01)
    assert honest == pytest.approx([row["loss"] for row in staying], abs=1e-4)


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("script, args, said", [
    ("sgd_every_k.py", ("--skew", 1.5), "from 0 to 1, not 1.5"),
    ("sgd_ddp.py", ("--samples", 1), "need 2 samples; there are 1"),
    ("sgd_staying.py", ("--task", "ImageNet"), "Digits, MNIST, not ImageNet"),
    ("sgd_hogwild.py", ("--workers", 0), "--workers must be 1 or more, not 0"),
])
def test_bad_input_is_refused(script, args, said):
    with pytest.raises(RankError, match="ValueError") as caught:
        trained(script, 2, *args, timeout=60)
    assert said in str(caught.value)


def test_mnist_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(RankError, match="MNIST cannot be read from"):
        trained("sgd_staying.py", 2, "--task", "MNIST")


def test_split_gives_the_remainder_to_the_last():
    assert split(1437, 4) == [range(0, 359), range(359, 718), range(718, 1077), range(1077, 1437)]


@pytest.mark.parametrize("workers, skew", [(3, 0.0), (4, 0.5), (8, 1.0)])
def test_skewed_split_uses_every_sample_once(workers, skew):
    labels = labels_of(TASKS["Digits"])
    shards = skewed_split(labels, workers, skew)
    assert sorted(torch.cat(shards).tolist()) == list(range(len(labels)))
    kinds = [len(labels[shard].unique()) for shard in shards]
    assert max(kinds) <= -(-10 // workers) + 1 if skew == 1 else min(kinds) == 10


def test_batches_are_a_pass_and_differ():
    first, second = batches(10, 4, 0, 1), batches(10, 4, 1, 1)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(torch.cat(first).tolist()) == list(range(10))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()


def test_workers_of_sorted_labels_see_the_digits_that_the_lesson_names():
    labels = labels_of(TASKS["Digits"])
    seen = [labels[shard].unique().tolist() for shard in skewed_split(labels, 4, 1.0)]
    assert seen[0] == [0, 1, 2] and seen[3] == [7, 8, 9] and all(len(digits) in (3, 4) for digits in seen)


def test_what_the_lesson_says_of_scaling_rules_is_what_its_cell_has_stored():
    (output,) = cells_of("02_parallel_sgd")["linear-scaling"].outputs
    losses = {}  # by optimizer and ranks: with the same rate, √N and N times
    for line in output.text.splitlines():
        if "1 rank:" in line:
            optimizer = line.partition(" on ")[0]
        else:
            losses[optimizer, int(line.split()[0])] = [float(text) for text in re.findall(r"\d+\.\d\d", line)]
    assert len(losses) == 9
    for (optimizer, ranks), (same, root, linear) in losses.items():
        assert root <= min(same, linear) + 0.1
        if optimizer == "SGD with 0.05":
            assert root <= same and (linear <= same) == (ranks < 32)
        else:
            assert linear == (max if optimizer == "Adam with 0.005" else min)(same, root, linear)


def test_only_the_iterator_of_a_data_loader_shifts_the_dropout_of_the_article():
    """Why the accuracies of the lesson's table differ: with random numbers of its own, the loader shifts nothing."""
    task = TASKS["MNIST"]
    images, labels = torch.rand(20, 1, 28, 28), torch.arange(20) % 10

    def last_weight(generator=None, loader=True):
        model = task.model()
        torch.manual_seed(1)
        data = zip(images.split(10), labels.split(10), strict=True)
        if loader:
            data = DataLoader(TensorDataset(images, labels), batch_size=10, generator=generator)
        one_pass(model, task.optimizer(model), data)
        return model[-1].weight

    alone = last_weight(loader=False)
    assert torch.equal(last_weight(torch.Generator()), alone) and not torch.equal(last_weight(), alone)


def test_images_prepared_one_by_one_or_all_at_once_are_the_same():
    task = TASKS["Digits"]
    images, labels = tensors(task, train=False)
    image, label = load(task.dataset, train=False)[7]
    assert torch.allclose(transform(task)(image), images[7]) and label == labels[7]


@pytest.mark.long
def test_mnist_is_read_as_torchvision_reads_it():
    try:
        mnist = load("MNIST", train=False)
    except DataError:
        pytest.skip("MNIST is not here")
    images, labels = _stored("MNIST", train=False)
    assert torch.equal(images, mnist.data) and torch.equal(labels.long(), mnist.targets)


# ----------------------------------------------------------------------------------------- a worker that dies


DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import sgd_hogwild as trainer
from lessons.parallel_sgd.task import TASKS

def dying(rank, *args):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(rank, *args)

real, trainer.train = trainer.train, dying

if __name__ == "__main__":
    trainer.main(TASKS["Digits"], 3, None, 3)
"""


def test_a_worker_that_dies_ends_the_run(tmp_path):
    path = tmp_path / "dies.py"
    path.write_text(DIES)
    began = time.monotonic()
    with pytest.raises(RankError, match="process 1 terminated with signal SIGKILL"):
        launch(path, 1, [ROOT / "notebooks/lessons/parallel_sgd"], show=False, timeout=100)
    assert time.monotonic() - began < 60


# --------------------------------------------------------------------------------------------------- explorer


def test_stored_curves_agree_with_real_ranks():
    for stored, real in zip(explorer.stored_grid()[2, 4, 0.5], explorer.train(2, 4, 0.5), strict=True):
        assert stored == pytest.approx(real, abs=0.006)


def drawn(workers, every, skew):
    """The frame of a setting, and its shapes by name."""
    scene = explorer.scene(workers, every, skew)
    (frame,) = scene["frames"]
    return frame, {shape["id"]: shape for shape in frame["shapes"]}, scene["off"]


@pytest.mark.parametrize("every", explorer.EVERY)
@pytest.mark.parametrize("workers", explorer.WORKERS)
def test_explorer_draws_the_stored_curves(workers, every):
    frame, shapes, off = drawn(workers, every, 0.5)
    curve, chart = explorer.stored_grid()[workers, every, 0.5], explorer.CHART
    assert f"{workers} worker" in frame["title"]
    assert f"{curve.accuracy[3]:.0%}, {curve.accuracy[4]:.0%}." in frame["alt"]
    if workers == 1:
        assert off == ["every", "skew"] and "do nothing here" in frame["note"] and "own" not in shapes
        return
    assert off == [] and f"{curve.own[-1]:.0%}" in frame["note"]
    for name, shares in ("averaged", curve.accuracy), ("own", curve.own):
        assert [y for _, y in shapes[name]["points"]] == pytest.approx([chart.y(share) for share in shares])
    assert shapes["lift 3"]["points"] == [shapes["own"]["points"][2], shapes["averaged"]["points"][2]]
    assert len(shapes["averagings"]["points"]) == 2 * curve.averagings
    ends = sorted(shape["y"] for name, shape in shapes.items() if name.startswith("end "))
    assert len(ends) == 3 and min(ends[1] - ends[0], ends[2] - ends[1]) >= 18, "names can be read"


def test_explorer_shows_the_digits_and_steps_that_workers_have():
    labels = labels_of(TASKS["Digits"])
    for workers, steps in explorer.STEPS.items():
        shards, (_, shapes, _) = skewed_split(labels, workers, 1.0), drawn(workers, 0, 1.0)
        assert steps == math.ceil(min(map(len, shards)) / TASKS["Digits"].batch)
        assert [shapes[f"steps {worker}"]["w"] > 0 for worker in range(8)] == [worker < workers for worker in range(8)]
        for worker, shard in enumerate(shards):
            part = shapes[f"sorted {worker}"]
            ends = [(x - explorer.DIGITS) / explorer.DIGIT for x in (part["x"], part["x"] + part["w"])]
            assert ends == pytest.approx([min(labels[shard]).item(), max(labels[shard]).item() + 1], abs=1.05)
            assert shapes[f"mixed {worker}"]["h"] == 0
    _, mixed, _ = drawn(8, 0, 0.0)
    assert mixed["sorted 3"]["h"] == 0 and mixed["mixed 3"]["w"] == 190


def test_explorer_stores_all_settings_and_a_row_brings_in_its_worker():
    stage = explorer.convergence_explorer()
    assert len(stage.story["scenes"]) == 48 and len(json.dumps(stage.story)) <= 80_000
    for one in stage.story["presets"]:
        assert one["setting"] != stage.story["first"]
    _, shapes, _ = drawn(2, 1, 0.0)
    assert [shapes[f"row {row}"]["click"]["workers"] for row in range(8)] == [1, 2, 4, 4, 8, 8, 8, 8]
