"""What DDP in practice shows of one GPU: whether a training that was killed ends there with the same bits, too."""

import contextlib
import os
import tempfile
from pathlib import Path

import torch
from torch.multiprocessing import ProcessExitedException

from helpers.experiments import experiment, in_ranks, run_script


@experiment(gpus=1, seconds=9, small={"epochs": 2, "undisturbed": 1})
def killed_on_a_gpu(epochs=4, undisturbed=2):
    """Does a training that was killed on a GPU end with the same bits as one that was not?

    Four times `train.py --fp16`, one rank over NCCL: undisturbed, undisturbed again, killed in epoch 1, and resumed.
    The weights at the end are compared.
    """
    with tempfile.TemporaryDirectory() as folder:
        wholes = [os.path.join(folder, f"whole-{number}.pt") for number in range(undisturbed)]
        for path in wholes:
            in_ranks(train, 1, path, epochs)
        killed = os.path.join(folder, "killed.pt")
        with contextlib.suppress(ProcessExitedException):  # by SIGKILL
            in_ranks(train, 1, killed, epochs, "--die-in-epoch", "1")
        left_at = torch.load(killed, map_location="cpu")["epoch"]
        in_ranks(train, 1, killed, epochs)
        return {
            "resumed after epoch": left_at,
            "undisturbed twice": differences(wholes[0], wholes[-1]),
            "killed and resumed": differences(wholes[0], killed),
        }


def train(path, epochs, *options):
    script = Path(__file__).with_name("train.py")
    run_script(script, path, "--fp16", "--epochs", str(epochs), *options)


def differences(snapshot, other_snapshot):
    """How many weights of two snapshots differ in a bit, of how many; and by how much the one that differs most."""
    weights = weights_of(snapshot)
    others = weights_of(other_snapshot)
    return {
        "weights": len(weights),
        "differ": int((weights != others).sum()),
        "largest": (weights - others).abs().max().item(),
    }


def weights_of(snapshot):
    """All weights in one row."""
    state = torch.load(snapshot, map_location="cpu")["model"]
    return torch.cat([weight.flatten() for weight in state.values()])


@killed_on_a_gpu.tells
def killed_in_words(result):
    resumed = result["killed and resumed"]
    twice = result["undisturbed twice"]
    return (
        f"The training that was resumed after epoch {result['resumed after epoch']} ends with "
        f"**{resumed['differ']} of {resumed['weights']:,} weights** different from those of an undisturbed one. "
        f"The largest difference is {resumed['largest']:.1g}. "
        f"Two undisturbed trainings differ in {twice['differ']} weights, by at most {twice['largest']:.1g}. "
        "`torch.use_deterministic_algorithms` was not called."
    )
