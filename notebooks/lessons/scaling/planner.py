"""A planner: how long a step takes on a cluster that is not rented yet, for every way to share the work.

A model's `Shape` is in `helpers.instruments.costs`. The seconds are checked against published rows in the lesson and in
tests, which say by how much they miss.
"""

import math
from typing import NamedTuple

import numpy

from helpers.places import RECORDS
from helpers.records import stored


def published():
    """The published tables A to F and the failure counts, each with its source; see the file."""
    return stored(RECORDS / "published_scaling.json")


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
    cable: float
    """Bytes/s of one GPU's network card, by its data sheet."""
    all_reduce: dict
    """{GPUs in a group: bytes/s}; we assume 2 (n − 1)/n of the tensor per second; its source does not say."""
    all_gather: dict
    """The same, (n − 1)/n of the tensor over seconds."""
    reached: float
    """The share of the peak that a GPU reaches when it multiplies large matrices. To be fitted."""
    narrow: float
    """The width at which all that is no product of matrices takes as long as these products. To be fitted."""


class Habits(NamedTuple):
    """What a library does to save time or memory."""

    pieces: int = 1
    """Pieces of the list of layers that each stage holds: more than 1 where the pipeline is interleaved."""
    recompute: bool = False
    """Whether backward computes each layer again."""
    zero: bool = False
    """Whether data-parallel ranks divide the optimizer's states: ZeRO-1."""
    tensor_hidden: float = 0
    """The share of tensor parallelism's messages that hides behind computing."""
    data_hidden: float = 0
    """The share of computing behind which the messages of data parallelism can hide."""


def bandwidth(table, gpus):
    """Bytes/s between `gpus` GPUs, from {GPUs: bytes/s}: straight lines in logarithms, level at both ends."""
    sizes = sorted(table)
    speeds = [table[size] for size in sizes]
    logarithm = numpy.interp(math.log(gpus), numpy.log(sizes), numpy.log(speeds))
    return math.exp(logarithm)


def layer_seconds(shape, layout, cluster, length):
    """Seconds in which a rank computes its part of one layer for one micro-batch, forward and backward.

    Products of matrices take time ~ width². All else moves bytes ~ width: it costs more in narrow layers.
    """
    flops = 6 * shape.layer + 6 * shape.width * length  # of a token; causal: half of attention's scores
    tokens = layout.micro_batch * length
    products = flops * tokens / layout.tensor / (cluster.peak * cluster.reached)
    return products * (1 + cluster.narrow / shape.width)


def longest_stage(layers, stages, head):
    """The work of the busiest stage, in layers, dealt out as evenly as the last stage's head allows.

    head: what scoring the vocabulary costs, in layers.
    """
    cuts = []
    for layers_each in range(1, layers + 1):
        last_stage = layers - (stages - 1) * layers_each + head
        cuts.append(max(layers_each, last_stage))
    return min(cuts)


def gather_seconds(shape, layout, cluster, length):
    """Seconds in which tensor-parallel ranks exchange activations (bf16) for a layer and a micro-batch."""
    activation = 2 * layout.micro_batch * length * shape.width  # bytes between two layers
    # Forward and backward of a layer each gather and reduce-scatter twice.
    moved = 8 * (layout.tensor - 1) / layout.tensor * activation
    return moved / bandwidth(cluster.all_gather, layout.tensor)


def send_seconds(shape, layout, cluster, length, pieces):
    """Seconds in which a stage sends activations (bf16), and then their gradients, for one micro-batch."""
    if layout.pipeline == 1:
        return 0
    activation = 2 * layout.micro_batch * length * shape.width
    return pieces * 2 * activation / layout.tensor / cluster.cable


def data_seconds(shape, layout, cluster, zero):
    """Seconds in which data-parallel ranks sum gradients in float32, and with ZeRO-1 gather weights in bf16.

    The groups of all stages are busy at the same time, so each gets the bandwidth of a group of all GPUs.
    """
    data, tensor, pipeline, *_ = layout
    numbers = (data - 1) / data * shape.parameters / (tensor * pipeline)
    gpus = data * tensor * pipeline
    if zero:
        # Each number is reduce-scattered with 4 bytes, and gathered with 2.
        return 6 * numbers / bandwidth(cluster.all_gather, gpus)
    # A ring sends each number twice, with 4 bytes.
    return 8 * numbers / bandwidth(cluster.all_reduce, gpus)


def seconds(shape, layout, cluster, length, habits):
    """Seconds of one step, as a dict of its parts: "compute", "tensor", "sends", "bubble" and "data"."""
    head = shape.head / (shape.layer + shape.width * length)
    stage = longest_stage(shape.layers, layout.pipeline, head)
    if habits.recompute:
        stage *= 4 / 3  # forward, a third of a layer's work, is done again
    # One micro-batch in the busiest stage:
    compute = stage * layer_seconds(shape, layout, cluster, length)
    tensor = stage * gather_seconds(shape, layout, cluster, length) * (1 - habits.tensor_hidden)
    sends = send_seconds(shape, layout, cluster, length, habits.pieces)
    # The whole step:
    bubble = (layout.pipeline - 1) / habits.pieces * (compute + tensor + sends)
    hidden = habits.data_hidden * layout.micro_batches * compute
    data = max(0, data_seconds(shape, layout, cluster, habits.zero) - hidden)
    return {"compute": layout.micro_batches * compute, "tensor": layout.micro_batches * tensor,
            "sends": layout.micro_batches * sends, "bubble": bubble, "data": data}


def mfu(shape, layout, cluster, length, habits):
    """The share of the GPUs' peak that goes into the model's own FLOPs, by `seconds`."""
    gpus = layout.data * layout.tensor * layout.pipeline
    tokens = layout.data * layout.micro_batches * layout.micro_batch * length
    step = sum(seconds(shape, layout, cluster, length, habits).values())
    return shape.flops(length) * tokens / step / (gpus * cluster.peak)


def layouts(gpus, batch, layers):
    """All layouts of `gpus` ranks for `batch` sequences: up to `layers` stages, up to 16 tensor-parallel."""
    for tensor in (1, 2, 4, 8, 16):
        for pipeline in range(1, layers + 1):
            if gpus % (tensor * pipeline) != 0:
                continue
            data = gpus // (tensor * pipeline)
            for micro_batch in range(1, batch // data + 1):
                if batch % (data * micro_batch) == 0:
                    micro_batches = batch // (data * micro_batch)
                    yield Layout(data, tensor, pipeline, micro_batches, micro_batch)
