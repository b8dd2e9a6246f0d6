"""What the sharding lesson shows of one GPU: a step's memory by kind, and the script that trains with FSDP2."""

import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.multiprocessing import ProcessExitedException
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from helpers.experiments import experiment, free_memory, in_ranks, run_script
from helpers.figures import HELD
from helpers.instruments.costs import activations, parameters, states
from helpers.models import GPT
from lessons.sharding import train_fsdp

GIB = 2**30


def measured_bytes(shape, batch, checkpointing):
    """What each kind adds to the bytes that the GPU has allocated, and the most in the second step."""
    tokens = torch.randint(shape["vocabulary"], (batch, shape["length"] + 1), device="cuda")
    before = torch.cuda.memory_allocated()
    levels = []

    def note():
        levels.append(torch.cuda.memory_allocated() - before)

    with torch.device("cuda"):
        model = GPT(**shape, checkpointing=checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # its step makes no copies
    note()
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    note()
    loss.backward()
    note()
    optimizer.step()
    note()
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    weights, forward, backward, stepped = levels
    return {"weights": weights, "gradients": backward - weights, "optimizer": stepped - backward,
            "activations": forward - weights, "peak": torch.cuda.max_memory_allocated() - before}


def predicted_bytes(shape, batch, checkpointing):
    """The same by the lesson's formulas. The peak is where backward begins, or where it ends."""
    sizes = {name: size for name, size in shape.items() if name != "heads"}
    held = states(parameters(**sizes), ranks=1, stage="DDP")
    one, none = (activations(**{**shape, "layers": layers}, batch=batch) for layers in (1, 0))
    block = one - none
    kept = activations(**shape, batch=batch, checkpointing=checkpointing) - block * checkpointing
    scores = 4 * batch * shape["length"] * shape["vocabulary"]  # their gradient, before and after the softmax
    peak = held["parameters"] + held["optimizer"] + max(kept + 2 * scores, held["gradients"] + block)
    return {"weights": held["parameters"], "gradients": held["gradients"], "optimizer": held["optimizer"],
            "activations": kept, "peak": peak}


@experiment(gpus=1, seconds=5, wanted=1,
            small={"width": 32, "layers": 2, "heads": 2, "vocabulary": 64, "length": 16})
def memory_of_a_larger_gpt(width=1024, layers=24, heads=16, vocabulary=50257, length=512, batch=4):
    """Do the lesson's formulas tell how much memory a GPT of 0.4 billion parameters takes on a GPU?

    We read torch.cuda.memory_allocated() after the model, a forward, a backward and a step of AdamW, in float32 with 4
    texts of 512 tokens. The peak is that of the second step. Without activation checkpointing, and with it.
    """
    shape = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary, "length": length}
    measured_bytes({**shape, "layers": 1}, batch, checkpointing=False)  # cuBLAS takes memory that it keeps
    result = {}
    for way, checkpointing in (("all kept", False), ("checkpointing", True)):
        free_memory()
        result[way] = {"predicted": predicted_bytes(shape, batch, checkpointing),
                       "measured": measured_bytes(shape, batch, checkpointing)}
    return result


@memory_of_a_larger_gpt.draws
def memory_drawn(result):
    fig, ax = plt.subplots(figsize=(8, 2.8))
    rows = {f"{way}, {how}": held for way, both in result.items() for how, held in both.items()}
    begins = [0] * len(rows)
    for kind in ("weights", "optimizer", "gradients", "activations"):
        sizes = [held[kind] / GIB for held in rows.values()]
        ax.barh(list(rows), sizes, left=begins, color=HELD[kind], label=kind)
        begins = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    ax.plot([held["peak"] / GIB for held in rows.values()], list(rows), "k|", markersize=20, label="peak of a step")
    ax.invert_yaxis()
    ax.set(title="A GPT's training step on one GPU", xlabel="GiB")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    fig.set_label("GiB by kind: " + "; ".join(f"{name} {sum(held.values()) / GIB - held['peak'] / GIB:.1f}, peak "
                                              f"{held['peak'] / GIB:.1f}" for name, held in rows.items()))


@memory_of_a_larger_gpt.tells
def memory_in_words(result):
    kinds = ("weights", "gradients", "optimizer", "activations")
    misses = {(way, kind): result[way]["measured"][kind] / result[way]["predicted"][kind] - 1
              for way in result for kind in kinds}
    (way, kind), most = max(misses.items(), key=lambda item: abs(item[1]))
    peaks = {way: [both[how]["peak"] / GIB for how in ("measured", "predicted")] for way, both in result.items()}
    kept, saving = peaks["all kept"], peaks["checkpointing"]
    lowers = "lowers" if saving[0] < kept[0] else "does not lower"
    return (f"For weights, gradients, optimizer's states and activations, measurement and formula differ by "
            f"at most **{abs(most):.2%}** ({kind}, {way}). The peak of a step is {kept[0]:.2f} GiB, predicted "
            f"{kept[1]:.2f}. Checkpointing {lowers} it: {saving[0]:.2f} GiB, predicted {saving[1]:.2f}.")


def trained(folder, *words):
    """Run the script in a process of its own, until it ends or is killed. Returns its seconds, and how it ended."""
    began = time.perf_counter()
    try:
        in_ranks(run_script, 1, train_fsdp.__file__, str(folder), *words)
        end = "to its end"
    except ProcessExitedException as error:
        end = error.signal_name
    return {"seconds": time.perf_counter() - began, "ran": end}


@experiment(gpus=1, seconds=12, wanted=2, small={"width": 16, "steps": 2, "killed": 1})
def train_fsdp_resumed(width=256, steps=6, killed=4):
    """Does the FSDP2 script, killed on a GPU and resumed, end with the same bits?

    train_fsdp.py runs three times with one rank: whole, killed by itself in a step, and resumed from its newest
    checkpoint. The last checkpoints of the whole run and of the resumed one are compared, tensor by tensor.
    """
    sizes = "--width", str(width), "--steps", str(steps)
    with tempfile.TemporaryDirectory() as folder:
        whole, other = Path(folder, "whole"), Path(folder, "other")
        runs = {"whole": trained(whole, *sizes), "killed": trained(other, *sizes, "--die-in-step", str(killed))}
        left = max(int(path.name[5:]) for path in other.glob("step-*"))
        runs["resumed"] = trained(other, *sizes)
        ends = [tensors(path / f"step-{steps}", Path(folder, "one.pt")) for path in (whole, other)]
        size = sum(path.stat().st_size for path in (whole / f"step-{steps}").iterdir())
    apart = max((one.double() - two.double()).abs().max().item() for one, two in zip(*ends, strict=True))
    return {"runs": runs, "resumed from": left, "killed in": killed, "steps": steps, "tensors": len(ends[0]),
            "largest difference": apart, "MiB": size / 2**20}


def tensors(checkpoint, file):
    """All tensors of a checkpoint, those of the optimizer among them."""
    dcp_to_torch_save(checkpoint, file)
    return [leaf for leaf in tree_leaves(torch.load(file)) if isinstance(leaf, torch.Tensor)]


@train_fsdp_resumed.tells
def resumed_in_words(result):
    seconds = {name: run["seconds"] for name, run in result["runs"].items()}
    verdict = "They are the same bits." if result["largest difference"] == 0 else "So they are not the same bits."
    return (f"A run was ended by {result['runs']['killed']['ran']} in step {result['killed in']} and resumed from step "
            f"{result['resumed from']}. Between the {result['tensors']} tensors of its last checkpoint "
            f"({result['MiB']:.0f} MiB) and those of a run that nobody killed, the largest difference is "
            f"**{result['largest difference']:.3g}**. {verdict} The whole run of {result['steps']} steps took "
            f"{seconds['whole']:.1f} s, the resumed one {seconds['resumed']:.1f} s, with the start of CUDA and NCCL.")
