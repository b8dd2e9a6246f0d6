"""What the lesson on model parallelism shows of one GPU: whether its dry run tells the truth."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers.experiments import attempt, experiment, in_ranks, peak_mib
from lessons.model_parallel import dry_run
from lessons.model_parallel.llama import Llama

AXES = ("copies", "shards", "tensor")


def predicted(layers, lengths, shape):
    """In a rank that sees no GPU: the peaks in GiB by the dry run, by length of the text."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=AXES)
    peaks = []
    for length in lengths:
        row = dry_run.step(layers, mesh, length, sequence=False, **shape)
        peaks.append(row["peak"])
    return peaks


def measured(layers, lengths, shape):
    """In a rank over NCCL: what the GPU really held at most, or how it refused."""
    mesh = init_device_mesh("cuda", (1, 1, 1), mesh_dim_names=AXES)
    return [attempt(real_peak, layers, mesh, length, shape) for length in lengths]


def real_peak(layers, mesh, length, shape):
    with torch.device("meta"):
        model = Llama(layers, **shape)
    dry_run.cut(model, mesh, sequence=False)
    _, _, train = dry_run.prepare(model, "cuda", length)
    train()  # makes the optimizer's states, and has cuBLAS take its memory
    return peak_mib(train) / 2**10


TINY = {"width": 64, "hidden": 128, "heads": 4, "groups": 2, "vocabulary": 128}


@experiment(gpus=1, seconds=6, wanted=2, small={**TINY, "layers": 1, "lengths": (8,)})
def dry_run_against_a_gpu(layers=2, lengths=(8192, 16384), width=4096, hidden=14336, heads=32, groups=8,
                          vocabulary=128256):
    """Does a real training step take the memory that the dry run predicts?

    Two of the 32 layers of Llama 3 8B and its embeddings, one text, bf16 with float32 weights, FSDP2 and tensor
    parallel on a mesh of one rank. The dry run sees no GPU. The real peak is torch.cuda.max_memory_allocated().
    """
    shape = {"width": width, "hidden": hidden, "heads": heads, "groups": groups, "vocabulary": vocabulary}
    [predictions] = in_ranks(predicted, 1, layers, lengths, shape)
    [measurements] = in_ranks(measured, 1, layers, lengths, shape, backend="nccl")
    result = {}
    for length, prediction, measurement in zip(lengths, predictions, measurements, strict=True):
        result[length] = {"predicted": prediction, "measured": measurement}
    return result


@dry_run_against_a_gpu.tells
def dry_run_in_words(result):
    table = ["| tokens | predicted, GiB | on the GPU, GiB |", "|-|-|-|"]
    misses = []
    for length, row in result.items():
        dry = row["predicted"]
        real = row["measured"]
        if isinstance(real, dict):
            on_gpu = real["refused"]
        else:
            on_gpu = f"{real:.2f}"
            misses.append(abs(dry / real - 1))
        table.append(f"| {int(length):,} | {dry:.2f} | {on_gpu} |")
    verdict = f"misses the real peak by at most **{max(misses):.1%}**" if misses else "**could not be compared**"
    return f"The dry run {verdict}.\n\n" + "\n".join(table)
