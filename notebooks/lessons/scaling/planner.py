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
    sizes, speeds = zip(*sorted(table.items()), strict=True)
    return math.exp(numpy.interp(math.log(gpus), numpy.log(sizes), numpy.log(speeds)))


def layer_seconds(shape, layout, cluster, length):
    """Seconds in which a rank computes its part of one layer for one micro-batch, forward and backward.

    Products of matrices take time ~ width². All else moves bytes ~ width: it costs more in narrow layers.
    """
    flops = 6 * shape.layer + 6 * shape.width * length  # of a token; causal: half of attention's scores
    products = flops * layout.micro_batch * length / layout.tensor / (cluster.peak * cluster.reached)
    return products * (1 + cluster.narrow / shape.width)


def longest_stage(layers, stages, head):
    """The work of the busiest stage, in layers, dealt out as evenly as the last stage's head allows.

    head: what scoring the vocabulary costs, in layers.
    """
    return min(max(each, layers - (stages - 1) * each + head) for each in range(1, layers + 1))


def gather_seconds(shape, layout, cluster, length):
    """Seconds in which tensor-parallel ranks exchange activations (bf16) for a layer and a micro-batch."""
    activation = 2 * layout.micro_batch * length * shape.width  # bytes between two layers
    # Forward and backward of a layer each gather and reduce-scatter twice.
    return 8 * (layout.tensor - 1) / layout.tensor * activation / bandwidth(cluster.all_gather, layout.tensor)


def send_seconds(shape, layout, cluster, length, pieces):
    """Seconds in which a stage sends activations (bf16), and then their gradients, for one micro-batch."""
    activation = 2 * layout.micro_batch * length * shape.width
    return (layout.pipeline > 1) * pieces * 2 * activation / layout.tensor / cluster.cable


def data_seconds(shape, layout, cluster, zero):
    """Seconds in which data-parallel ranks sum gradients in float32, and with ZeRO-1 gather weights in bf16.

    The groups of all stages are busy at the same time, so each gets the bandwidth of a group of all GPUs.
    """
    data, tensor, pipeline, *_ = layout
    sent = (data - 1) / data * shape.parameters / (tensor * pipeline)  # numbers
    gpus = data * tensor * pipeline
    if zero:
        return 6 * sent / bandwidth(cluster.all_gather, gpus)
    return 8 * sent / bandwidth(cluster.all_reduce, gpus)


def seconds(shape, layout, cluster, length, habits):
    """Seconds of one step, as a dict of its parts: "compute", "tensor", "sends", "bubble" and "data"."""
    again = 4 / 3 if habits.recompute else 1  # forward is a third of a layer's work
    head = shape.head / (shape.layer + shape.width * length)
    stage = again * longest_stage(shape.layers, layout.pipeline, head)
    one = {"compute": stage * layer_seconds(shape, layout, cluster, length),
           "tensor": stage * gather_seconds(shape, layout, cluster, length) * (1 - habits.tensor_hidden),
           "sends": send_seconds(shape, layout, cluster, length, habits.pieces)}
    parts = {part: layout.micro_batches * took for part, took in one.items()}
    shown = data_seconds(shape, layout, cluster, habits.zero) - habits.data_hidden * parts["compute"]
    bubble = (layout.pipeline - 1) / habits.pieces * sum(one.values())
    return parts | {"bubble": bubble, "data": max(0, shown)}


def mfu(shape, layout, cluster, length, habits):
    """The share of the GPUs' peak that goes into the model's own FLOPs, by `seconds`."""
    gpus, sequences = math.prod(layout[:3]), layout.data * layout.micro_batches * layout.micro_batch
    step = sum(seconds(shape, layout, cluster, length, habits).values())
    return shape.flops(length) * sequences * length / step / (gpus * cluster.peak)


def layouts(gpus, batch, layers):
    """All layouts of `gpus` ranks for `batch` sequences: up to `layers` stages, up to 16 tensor-parallel."""
    for tensor in (1, 2, 4, 8, 16):
        for pipeline in (stages for stages in range(1, layers + 1) if gpus % (tensor * stages) == 0):
            data = gpus // (tensor * pipeline)
            for micro_batch in (size for size in range(1, batch // data + 1) if batch % (data * size) == 0):
                yield Layout(data, tensor, pipeline, batch // (data * micro_batch), micro_batch)
