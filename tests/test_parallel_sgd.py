"""Lesson 02: its trainers as workers, their agreement, bad input, workers that die, and the explorer's model."""

import os
import time

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from helpers import RankError, launch
from helpers.data import DataError, load
from helpers.figures import alt
from lessons.parallel_sgd.convergence_explorer import convergence_explorer, stored_grid, train
from lessons.parallel_sgd.shards import _stored, batches, labels_of, skewed_split, split, tensors, transform
from lessons.parallel_sgd.task import TASKS
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("nothing_left")

RANKS = ["sgd_staying.py", "sgd_every_k.py", "sgd_ddp.py"]
SPAWNERS = ["sgd_respawned.py", "sgd_hogwild.py", "sgd_published.py"]


def trained(script, workers=2, *args, timeout=240):
    """Launch a trainer; return its reported rows."""
    if script in SPAWNERS:
        args = ("--workers", str(workers), *args)
    run = launch(script, 1 if script in SPAWNERS else workers, args=[*map(str, args)], show=False, timeout=timeout)
    return [row for row in run.reports[0] if "accuracy" in row], run


# ----------------------------------------------------------------------------------------------------------- trainers


@pytest.mark.parametrize("script", [*RANKS, "sgd_diloco.py", "sgd_hogwild.py"])
def test_trainer_learns(script):
    rows, _ = trained(script, 2, "--epochs", 3)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["accuracy"] > 0.7 and rows[-1]["loss"] < 1
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.long  # lesson 02 runs both
def test_respawned_and_staying_workers_make_the_same_model():
    (rows, respawned), (_, staying) = (trained(script, 2, "--epochs", 1) for script in ("sgd_respawned.py", RANKS[0]))
    assert len(rows) == 1 and rows[0]["accuracy"] > 0.7 and rows[0]["seconds"] > 0
    old, new = (torch.tensor(run.reports[0][-1]["weights"]) for run in (respawned, staying))
    assert torch.allclose(old, new, atol=1e-5)


def test_averaging_every_step_is_ddp():
    (ours, _), (theirs, _) = (trained(script, 3, "--epochs", 2) for script in ("sgd_every_k.py", "sgd_ddp.py"))
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], abs=1e-4)


@pytest.mark.long
def test_published_program_needs_both_bugs():
    rows, _ = trained("sgd_published.py", 3, "--epochs", 2, "--lr", 0.01)
    honest, repeated, shared, both = [[row["loss"] for row in rows[first:first + 2]] for first in (0, 2, 4, 6)]
    assert honest == pytest.approx(repeated, abs=1e-6), "every repetition begins where the first one did"
    assert shared[-1] < 0.6 * honest[-1] and both[-1] < 0.9 * shared[-1]
    staying, _ = trained("sgd_staying.py", 3, "--epochs", 2, "--lr", 0.01)
    assert honest == pytest.approx([row["loss"] for row in staying], abs=1e-4)


def test_with_adam_averaging_models_is_not_averaging_gradients():
    adam = ("--epochs", 1, "--method", "Adam", "--lr", 0.005)
    (ours, _), (theirs, _) = (trained(script, 2, *adam) for script in ("sgd_every_k.py", "sgd_ddp.py"))
    assert abs(ours[-1]["loss"] - theirs[-1]["loss"]) > 0.01


def test_every_rank_holds_the_averaged_model():
    _, run = trained("sgd_every_k.py", 2, "--every", 7, "--epochs", 1)
    assert run.reports[0][0]["loss"] == pytest.approx(run.reports[1][0]["loss"], abs=1e-6)


def test_a_worker_without_company():
    rows, _ = trained("sgd_every_k.py", 1, "--epochs", 1)
    assert rows[-1]["accuracy"] > 0.7


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("script, args, said", [
    ("sgd_every_k.py", ("--every", 0), "--every must be 1 or more, not 0"),
    ("sgd_every_k.py", ("--skew", 1.5), "from 0 to 1, not 1.5"),
    ("sgd_every_k.py", ("--samples", 0), "the dataset is empty"),
    ("sgd_ddp.py", ("--samples", 1), "need 2 samples; there are 1"),
    ("sgd_staying.py", ("--samples", 100_000), "--samples 100000: there are only 1437"),
    ("sgd_staying.py", ("--task", "ImageNet"), "Digits, MNIST, not ImageNet"),
    ("sgd_ddp.py", ("--method", "Lion"), "SGD or Adam, not Lion"),
    ("sgd_hogwild.py", ("--workers", 0), "--workers must be 1 or more, not 0"),
    ("sgd_hogwild.py", ("--workers", 9, "--samples", 4), "need 9 samples; there are 4"),
    ("sgd_hogwild.py", ("--samples", -5), "--samples must be 0 or more, not -5"),
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


@pytest.mark.parametrize("workers, skew", [(1, 1.0), (3, 0.0), (4, 0.5), (8, 1.0)])
def test_skewed_split_uses_every_sample_once(workers, skew):
    labels = labels_of(TASKS["Digits"])
    shards = skewed_split(labels, workers, skew)
    assert sorted(torch.cat(shards).tolist()) == list(range(len(labels)))
    kinds = [len(labels[shard].unique()) for shard in shards]
    assert max(kinds) <= -(-10 // workers) + 1 if skew == 1 else min(kinds) == 10


def test_batches_are_a_pass_and_differ():
    first, second = batches(10, 4, 0, 1), batches(10, 4, 1, 1)
    assert [len(batch) for batch in first] == [4, 4, 2] and sorted(torch.cat(first).tolist()) == list(range(10))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()


def test_images_prepared_one_by_one_or_all_at_once_are_the_same():
    task = TASKS["Digits"]
    images, labels = tensors(task, train=False)
    image, label = load(task.dataset, train=False)[7]
    assert torch.allclose(transform(task)(image), images[7]) and label == labels[7]


def test_mnist_is_read_as_torchvision_reads_it():
    try:
        mnist = load("MNIST", train=False)
    except DataError:
        pytest.skip("MNIST is not here")
    images, labels = _stored("MNIST", train=False)
    assert torch.equal(images, mnist.data) and torch.equal(labels.long(), mnist.targets)


# ---------------------------------------------------------------------------------------------------- workers that die


DIES = """
import os, signal, sys
sys.path.insert(0, {workers!r})
import {script} as trainer
from lessons.parallel_sgd.task import TASKS

def dying(rank, *args):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(rank, *args)

real, trainer.{function} = trainer.{function}, dying

if __name__ == "__main__":
    trainer.main(TASKS["Digits"], 3, None, 3{more})
"""


@pytest.mark.parametrize("script, function", [
    ("sgd_hogwild", "train"),
    pytest.param("sgd_respawned", "train_epoch", marks=pytest.mark.long),
    pytest.param("sgd_published", "train_epoch", marks=pytest.mark.long)])
def test_a_worker_that_dies_ends_the_run(tmp_path, script, function):
    path = tmp_path / "dies.py"
    path.write_text(DIES.format(workers=str(ROOT / "notebooks/lessons/parallel_sgd"), script=script, function=function,
                                more=", 1" if script == "sgd_respawned" else ""))  # a thread for each worker
    began = time.monotonic()
    with pytest.raises(RankError, match="process 1 terminated with signal SIGKILL"):
        launch(path, 1, show=False, timeout=100)
    assert time.monotonic() - began < 60


def test_a_rank_that_dies_ends_the_run():
    def dies():
        import signal

        from lessons.parallel_sgd import sgd_every_k as trainer

        def deadly(model, average=trainer.average):
            if os.environ["RANK"] == "2":
                os.kill(os.getpid(), signal.SIGKILL)
            average(model)

        trainer.average = deadly
        trainer.train(1, task=TASKS["Digits"], epochs=3, samples=None)

    with pytest.raises(RankError, match="SIGKILL"):
        launch(dies, 3, show=False, timeout=60)


# ----------------------------------------------------------------------------------------------------------- explorer


@pytest.fixture(scope="module")
def grid():
    return stored_grid()


@pytest.mark.parametrize("setting", [(4, 16, 1.0), (2, 4, 0.5)])
def test_stored_curves_agree_with_real_ranks(grid, setting):
    for stored, real in zip(grid[setting], train(*setting), strict=True):
        assert stored == pytest.approx(real, abs=0.006)


def lines_of(figure):
    """What the picture's two coloured lines show, by label."""
    return {line.get_label().partition("\n")[0]: list(line.get_ydata()) for line in figure.axes[0].lines}


@pytest.mark.long
def test_explorer_draws_every_setting(grid):
    explorer, seen = convergence_explorer(), set()
    for workers, every, skew in (setting for setting in grid if setting[0] in (1, 4)):
        for name, value in (("workers", workers), ("every", every), ("skew", skew)):
            explorer.controls[name].value = value
        seen.add(explorer.picture.value)
        figure, curve = explorer.figure(), grid[workers, every, skew]
        assert lines_of(figure) == {"the averaged model": curve.accuracy, "the workers' own,": curve.own}
        said = alt(figure)
        assert f"{workers} worker" in said and f"{curve.accuracy[3]:.0%}, {curve.accuracy[4]:.0%};" in said
        shown = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
        assert shown.x0 >= 0 and shown.y0 >= 0 and all(shown.max <= figure.get_size_inches()), "nothing is cut off"
    assert len(seen) == 1 + 12, "one worker has nobody to average with; all others differ"


def test_what_does_nothing_with_one_worker_says_so():
    explorer = convergence_explorer()
    others = [explorer.controls["every"], explorer.controls["skew"]]
    for workers in (1, 2):
        explorer.controls["workers"].value = workers
        assert [control.disabled for control in others] == [workers == 1] * 2
        texts = " ".join(text.get_text() for text in explorer.figure().axes[0].texts)
        assert ("do nothing here" in texts) == (workers == 1) != ("averaging" in texts)
