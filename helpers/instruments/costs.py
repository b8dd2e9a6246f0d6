"""What training costs, before anyone rents a cluster: a model of the bytes that a rank holds, and of a step's seconds.

Tests compare the bytes with what `helpers.instruments.memory` counts in real ranks. The seconds are checked against
published rows in lesson 13 and in tests, which say by how much they miss.
"""

import math
from typing import NamedTuple

import numpy

from helpers.records import RECORDS, stored

STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def block_parameters(width):
    """Parameters of one block: four projections of attention, two layers of 4 · width, two norms; with biases."""
    return 12 * width**2 + 13 * width


def parameters(width, layers, vocabulary, length):
    """Parameters of a `GPT`."""
    return (vocabulary + length) * width + layers * block_parameters(width) + 2 * width + (width + 1) * vocabulary


def states(parameters, ranks, stage):
    """Bytes that one rank holds of a model in float32 under AdamW, by kind; pieces are rounded up.

    Raises:
        ValueError: `stage` is not one of STAGES.
    Source: Rajbhandari et al., 2019, https://arxiv.org/abs/1910.02054, section 5.
    """
    number, piece = STAGES.index(stage), -(-parameters // ranks)
    return {kind: size * (piece if number >= since else parameters)
            for kind, since, size in (("parameters", 3, 4), ("gradients", 2, 4), ("optimizer", 1, 8))}


def activations(width, layers, heads, vocabulary, length, batch, checkpointing=False):
    """Bytes that forward keeps for backward: with checkpointing, each block's input, and one block whole."""
    block = 16 * width + 4 + heads
    kept = layers * width + block if checkpointing else layers * block
    return 4 * batch * length * (kept + 2 * width + 2 + vocabulary)


def published():
    """The published tables A to F and the failure counts, each with its source; see the file."""
    return stored(RECORDS / "published_scaling.json")


class Shape(NamedTuple):
    """A decoder whose feed-forward nets have a gate, such as Llama's: three matrices of width × hidden."""

    layers: int
    width: int
    hidden: int
    vocabulary: int
    tied: bool
    """Whether the last layer shares its weights with the embedding."""

    @property
    def parameters(self):
        """All of them, norms aside."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.hidden) + self.head * (2 - self.tied)

    @property
    def head(self):
        """Parameters of the last layer."""
        return self.vocabulary * self.width

    def flops(self, length):
        """FLOPs of one token, forward and backward: 6 for each weight of a matrix, and attention over `length`.

        Source: https://arxiv.org/abs/2204.02311, appendix B. What checkpointing computes again does not count.
        """
        matrices = self.parameters - self.head * (not self.tied)  # looking up an embedding multiplies nothing
        return 6 * matrices + 12 * self.layers * self.width * length


class Layout(NamedTuple):
    """How ranks share the work; their number is data × tensor × pipeline."""

    data: int
    tensor: int
    pipeline: int
    micro_batches: int
    """That each pipeline does one after the other."""
    micro_batch: int
    """Sequences in each."""


class Cluster(NamedTuple):
    """What a cluster can do."""

    peak: float
    """FLOP/s of one GPU, by its data sheet, without sparsity."""
    reached: float
    """The share of the peak that a GPU reaches when it multiplies large matrices."""
    half: float
    """Numbers in a rank's part of an activation with which it reaches half of that."""
    all_reduce: dict
    """{GPUs in a group: bytes/s}, 2 (n − 1)/n of the tensor over seconds, as we read it: its source does not say."""
    all_gather: dict
    """The same, (n − 1)/n of the tensor over seconds."""


def bandwidth(table, gpus):
    """Bytes/s between `gpus` GPUs, from {GPUs: bytes/s}: a straight line in logarithms; its ends go on level."""
    sizes, speeds = zip(*sorted(table.items()), strict=True)
    return math.exp(numpy.interp(math.log(gpus), numpy.log(sizes), numpy.log(speeds)))


def seconds(shape, layout, cluster, length):
    """Seconds of one step, as a dict: "compute", "tensor", "bubble" and "data"; their sum is the step.

    Weights and activations in bf16, gradients summed in float32; nothing overlaps; all stages are equal.
    """
    data, tensor, pipeline, micro_batches, micro_batch = layout
    activation = micro_batch * length * shape.width  # numbers that go from one layer to the next
    share = cluster.reached * (activation / tensor) / (activation / tensor + cluster.half)
    flops = shape.flops(length) * micro_batch * length / (tensor * pipeline)
    compute = flops / (cluster.peak * share)
    # Forward and backward of a layer each gather and reduce-scatter twice.
    gathered = 8 * shape.layers / pipeline * (tensor - 1) / tensor * 2 * activation
    split = gathered / bandwidth(cluster.all_gather, tensor)
    gradients = 2 * (data - 1) / data * 4 * shape.parameters / (tensor * pipeline)
    return {"compute": micro_batches * compute, "tensor": micro_batches * split,
            "bubble": (pipeline - 1) * (compute + split), "data": gradients / bandwidth(cluster.all_reduce, data)}


def mfu(shape, layout, cluster, length):
    """The share of the GPUs' peak that goes into the model's own FLOPs, by `seconds`."""
    gpus, sequences = math.prod(layout[:3]), layout.data * layout.micro_batches * layout.micro_batch
    return shape.flops(length) * sequences * length / sum(seconds(shape, layout, cluster, length).values()) / (
        gpus * cluster.peak)


def layouts(gpus, batch, layers):
    """All layouts of `gpus` ranks for `batch` sequences: up to `layers` stages, 1, 2, 4, 8 or 16 tensor-parallel."""
    for tensor in (1, 2, 4, 8, 16):
        for pipeline in (stages for stages in range(1, layers + 1) if gpus % (tensor * stages) == 0):
            data = gpus // (tensor * pipeline)
            for micro_batch in (size for size in range(1, batch // data + 1) if batch % (data * size) == 0):
                yield Layout(data, tensor, pipeline, batch // (data * micro_batch), micro_batch)
