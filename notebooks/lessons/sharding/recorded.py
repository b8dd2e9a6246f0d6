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
#: What a step's memory holds, in the order of a bar.
KINDS = ("weights", "optimizer", "gradients", "activations")


def measured_bytes(shape, batch, checkpointing):
    """What each kind adds to the bytes that the GPU has allocated, and the most in the second step."""
    tokens = torch.randint(shape["vocabulary"], (batch, shape["length"] + 1), device="cuda")
    before = torch.cuda.memory_allocated()
    levels = []

    def note():
        levels.append(torch.cuda.memory_allocated() - before)

    with torch.device("cuda"):
        model = GPT(**shape, checkpointing=checkpointing)

    def forward():
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # its step makes no copies
    note()
    loss = forward()
    note()
    loss.backward()
    note()
    optimizer.step()
    note()

    # In the second step, all states are there from the start.
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    forward().backward()
    optimizer.step()
    after_model, after_forward, after_backward, after_step = levels
    return {
        "weights": after_model,
        "gradients": after_backward - after_model,
        "optimizer": after_step - after_backward,
        "activations": after_forward - after_model,
        "peak": torch.cuda.max_memory_allocated() - before,
    }


def predicted_bytes(shape, batch, checkpointing):
    """The same by the lesson's formulas. The peak is where backward begins, or where it ends."""
    sizes = {name: size for name, size in shape.items() if name != "heads"}
    state = states(parameters(**sizes), ranks=1, stage="DDP")
    with_one_block = activations(**{**shape, "layers": 1}, batch=batch)
    without_blocks = activations(**{**shape, "layers": 0}, batch=batch)
    block = with_one_block - without_blocks
    after_forward = activations(**shape, batch=batch, checkpointing=checkpointing)
    if checkpointing:
        after_forward -= block  # the block that the formula counts whole is there only in backward
    scores = 4 * batch * shape["length"] * shape["vocabulary"]
    where_backward_begins = after_forward + 2 * scores  # the scores' gradient, before and after the softmax
    where_it_ends = state["gradients"] + block
    return {
        "weights": state["parameters"],
        "gradients": state["gradients"],
        "optimizer": state["optimizer"],
        "activations": after_forward,
        "peak": state["parameters"] + state["optimizer"] + max(where_backward_begins, where_it_ends),
    }


@experiment(gpus=1, seconds=5, wanted=1,
            small={"width": 32, "layers": 2, "heads": 2, "vocabulary": 64, "length": 16})
def memory_of_a_larger_gpt(width=1024, layers=24, heads=16, vocabulary=50257, length=512, batch=4):
    """Do the lesson's formulas tell how much memory a GPT of 0.4 billion parameters takes on a GPU?

    We read torch.cuda.memory_allocated() after the model, a forward, a backward and a step of AdamW, in float32 with 4
    texts of 512 tokens. The peak is that of the second step. Without activation checkpointing, and with it.
    """
    shape = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary, "length": length}
    one_layer = {**shape, "layers": 1}
    measured_bytes(one_layer, batch, checkpointing=False)  # cuBLAS takes memory that it keeps
    result = {}
    for way, checkpointing in (("all kept", False), ("checkpointing", True)):
        free_memory()
        result[way] = {
            "predicted": predicted_bytes(shape, batch, checkpointing),
            "measured": measured_bytes(shape, batch, checkpointing),
        }
    return result


@memory_of_a_larger_gpt.draws
def memory_drawn(result):
    figure, ax = plt.subplots(figsize=(8, 2.8))
    bars = {}
    for way, both in result.items():
        for source, sizes in both.items():
            bars[f"{way}, {source}"] = {kind: size / GIB for kind, size in sizes.items()}
    ends = [0] * len(bars)
    for kind in KINDS:
        sizes = [bar[kind] for bar in bars.values()]
        ax.barh(list(bars), sizes, left=ends, color=HELD[kind], label=kind)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    peaks = [bar["peak"] for bar in bars.values()]
    ax.plot(peaks, list(bars), "k|", markersize=20, label="peak of a step")
    ax.invert_yaxis()
    ax.set(title="A GPT's training step on one GPU", xlabel="GiB")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    labels = []
    for name, end, peak in zip(bars, ends, peaks, strict=True):
        labels.append(f"{name} {end:.1f}, peak {peak:.1f}")
    figure.set_label("GiB by kind: " + "; ".join(labels))


@memory_of_a_larger_gpt.tells
def memory_in_words(result):
    misses = {}
    for way, both in result.items():
        measured = both["measured"]
        predicted = both["predicted"]
        for kind in KINDS:
            misses[f"{kind}, {way}"] = abs(measured[kind] / predicted[kind] - 1)
    worst = max(misses, key=misses.get)
    kept, kept_predicted = peaks_in_gib(result["all kept"])
    checkpointing, checkpointing_predicted = peaks_in_gib(result["checkpointing"])
    lowers = "lowers" if checkpointing < kept else "does not lower"
    return (
        "For weights, gradients, optimizer's states and activations, measurement and formula differ by at most "
        f"**{misses[worst]:.2%}** ({worst}). "
        f"The peak of a step is {kept:.2f} GiB, predicted {kept_predicted:.2f}. "
        f"Checkpointing {lowers} it: {checkpointing:.2f} GiB, predicted {checkpointing_predicted:.2f}."
    )


def peaks_in_gib(both):
    """The measured peak, and the predicted one."""
    return both["measured"]["peak"] / GIB, both["predicted"]["peak"] / GIB


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
    sizes = ("--width", str(width), "--steps", str(steps))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        resumed = Path(folder, "resumed")
        runs = {}
        runs["whole"] = trained(whole, *sizes)
        runs["killed"] = trained(resumed, *sizes, "--die-in-step", str(killed))
        newest = max(int(path.name.removeprefix("step-")) for path in resumed.glob("step-*"))
        runs["resumed"] = trained(resumed, *sizes)

        last = f"step-{steps}"
        tensors_of_whole = tensors(whole / last)
        tensors_of_resumed = tensors(resumed / last)
        size = sum(path.stat().st_size for path in (whole / last).iterdir())
    differences = []
    for tensor, other in zip(tensors_of_whole, tensors_of_resumed, strict=True):
        difference = tensor.double() - other.double()
        differences.append(difference.abs().max().item())
    return {
        "runs": runs,
        "resumed from": newest,
        "killed in": killed,
        "steps": steps,
        "tensors": len(differences),
        "largest difference": max(differences),
        "MiB": size / 2**20,
    }


def tensors(checkpoint):
    """All tensors of a checkpoint, those of the optimizer among them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tensors.pt")
        dcp_to_torch_save(checkpoint, file)  # torch.load reads one file, a checkpoint is a folder of them
        leaves = tree_leaves(torch.load(file))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@train_fsdp_resumed.tells
def resumed_in_words(result):
    whole = result["runs"]["whole"]
    killed = result["runs"]["killed"]
    resumed = result["runs"]["resumed"]
    difference = result["largest difference"]
    verdict = "They are the same bits." if difference == 0 else "So they are not the same bits."
    return (
        f"A run was ended by {killed['ran']} in step {result['killed in']} "
        f"and resumed from step {result['resumed from']}. "
        f"Between the {result['tensors']} tensors of its last checkpoint ({result['MiB']:.0f} MiB) "
        f"and those of a run that nobody killed, the largest difference is **{difference:.3g}**. {verdict} "
        f"The whole run of {result['steps']} steps took {whole['seconds']:.1f} s, "
        f"the resumed one {resumed['seconds']:.1f} s, with the start of CUDA and NCCL."
    )
