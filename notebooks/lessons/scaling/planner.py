"""A planner: how long a step takes on a cluster that is not rented yet, for every way to share the work.

A model's `Shape` is in `helpers.instruments.costs`. What is published, as runs of this planner: `published_runs.py`.
The lesson and tests hold the seconds against them, and say by how much they miss.
"""

import math
from typing import NamedTuple

import numpy

from helpers.places import RECORDS
from helpers.records import stored

#: GPUs of a machine, in all published tables.
NODE = 8
#: The share of the peak that attention reaches today: the record `one_gpu_mfu`, texts of 8,192 tokens, on an H200.
ATTENTION = 0.57


def published():
    """The published tables A to N and the failure counts, each with its source; see the file."""
    return stored(RECORDS / "published_scaling.json")


class Layout(NamedTuple):
    """How ranks share the work; their number is data × tensor × pipeline."""

    data: int
    tensor: int
    pipeline: int
    micro_batches: int
    """That each pipeline does one after the other."""
    micro_batch: float
    """Sequences in each: 0.5 where two ranks share one."""


class Cluster(NamedTuple):
    """What a cluster can do."""

    peak: float
    """FLOP/s of one GPU, by its data sheet, without sparsity."""
    memory: float
    """Bytes/s of one GPU's memory, by its data sheet."""
    card: float
    """Bytes/s of one GPU's network card, by its data sheet."""
    all_reduce: dict
    """{GPUs in a group: bytes/s}, so that an all-reduce takes 2 (n − 1)/n of the tensor over these."""
    all_gather: dict
    """The same, (n − 1)/n of the tensor over these; also a reduce-scatter."""
    latency: float = 0
    """Seconds that a round of a ring costs besides; 0 where the bandwidths were measured, and hold it already."""


class Software(NamedTuple):
    """How well a library uses a GPU: to be fitted, on small runs of the same library and GPU."""

    reached: float
    """The share of the peak that products of matrices reach."""
    traffic: float
    """Bytes that all else (norms, activations, copies) moves to and from memory, of each token and number of a
    layer's width."""
    attention: float
    """The share of the peak that attention reaches."""


class Habits(NamedTuple):
    """What a library does to save time or memory."""

    pieces: int = 1
    """Pieces of the list of layers that each stage holds: more than 1 where the pipeline is interleaved."""
    recompute: float = 0
    """The share of the layers' forward that backward does again: 1 with full checkpointing."""
    zero: int = 0
    """The stage of ZeRO, 0 to 3. FSDP is 3, or 2 where it keeps the weights until backward."""
    hidden: float = 0
    """The share of tensor parallelism's messages, and of those between stages, that hides behind computing."""
    data_hidden: float = 0
    """The share of data parallelism's messages that hides behind computing, as far as computing takes so long."""
    summed: int = 4
    """Bytes of each gradient that FSDP sums: 4 in float32, 2 in bf16."""
    window: float = math.inf
    """How many tokens back attention looks: all, or a sliding window."""


def described(peak, memory, link, card):
    """A `Cluster` of which a table names only the parts; `link` and `card`: bytes/s of one GPU, by data sheets.

    Assumes that a ring reaches 55 % of NVLink in a node (table A's H100s gather at that speed), and 80 % of all cards
    of a node between nodes, and that each of its rounds costs 5 µs.
    """
    within = 0.55 * link
    between = min(within, 0.8 * NODE * card)
    ring = {NODE: within, 2 * NODE: between}
    return Cluster(peak, memory, card, ring, ring, latency=5e-6)


def bandwidth(table, gpus):
    """Bytes/s between `gpus` GPUs, from {GPUs: bytes/s}: straight lines in logarithms, level at both ends."""
    sizes = sorted(table)
    speeds = [table[size] for size in sizes]
    logarithm = numpy.interp(math.log(gpus), numpy.log(sizes), numpy.log(speeds))
    return math.exp(logarithm)


def seen(length, window):
    """How many tokens a token looks at, on average, with causal attention: half of a text, or less with a window."""
    window = min(window, length)
    return window - window**2 / (2 * length)


def layer_seconds(shape, layout, cluster, software, length, habits):
    """Seconds in which a rank computes its part of one layer for one micro-batch, forward and backward."""
    tokens = layout.micro_batch * length / layout.tensor
    products = 6 * shape.layer * tokens / (software.reached * cluster.peak)
    rest = software.traffic * shape.width * tokens / cluster.memory
    # 2 products in forward; backward does one of them again, and 4 for the gradients. Each: 2 · width FLOPs a pair.
    attention = 7 * 2 * shape.width * seen(length, habits.window) * tokens / (software.attention * cluster.peak)
    forward = (products + rest) / 3 + attention * 2 / 7
    return products + rest + attention + habits.recompute * forward


def longest_stage(layers, stages, head):
    """The work of the busiest stage, in layers, dealt out as evenly as the last stage's head allows.

    head: what scoring the vocabulary costs, in layers.
    """
    cuts = []
    for layers_each in range(1, layers + 1):
        last_stage = layers - (stages - 1) * layers_each + head
        cuts.append(max(layers_each, last_stage))
    return min(cuts)


def gather_seconds(shape, layout, cluster, length, recompute):
    """Seconds in which tensor-parallel ranks exchange activations (bf16) for a layer and a micro-batch."""
    activation = 2 * layout.micro_batch * length * shape.width  # bytes between two layers
    # Forward and backward of a layer each gather and reduce-scatter twice.
    times = 8 + 4 * recompute
    moved = times * (layout.tensor - 1) / layout.tensor * activation
    return moved / bandwidth(cluster.all_gather, layout.tensor)


def send_seconds(shape, layout, cluster, length, pieces):
    """Seconds in which a stage sends activations (bf16), and then their gradients, for one micro-batch."""
    if layout.pipeline == 1:
        return 0
    activation = 2 * layout.micro_batch * length * shape.width
    return pieces * 2 * activation / layout.tensor / cluster.card


def data_seconds(shape, layout, cluster, zero, summed):
    """Seconds in which data-parallel ranks sum gradients, and with ZeRO gather weights in bf16.

    Below stage 2 of ZeRO gradients are float32; from there on each has `summed` bytes.
    The groups of all stages are busy at the same time, so each gets the bandwidth of a group of all GPUs, and between
    nodes at most its share of a node's cards.
    """
    data, tensor, pipeline, micro_batches, _ = layout
    numbers = (data - 1) / data * shape.parameters / (tensor * pipeline)
    table = cluster.all_gather if zero else cluster.all_reduce
    speed = bandwidth(table, data * tensor * pipeline)
    rounds = 0
    if data * tensor > NODE:
        speed = min(speed, NODE * cluster.card / tensor)
        rounds = (data - 1) * shape.layers / pipeline  # of one collective; each layer has its own
    if zero < 2:
        # A ring sends each number twice, with 4 bytes; with ZeRO-1 once with 4 bytes and once with 2.
        return (6 if zero else 8) * numbers / speed + 2 * rounds * cluster.latency
    # FSDP gathers before forward and before backward, or once, and reduce-scatters, for every micro-batch.
    gathers = zero - 1
    one = (2 * gathers + summed) * numbers / speed + (gathers + 1) * rounds * cluster.latency
    return micro_batches * one


def seconds(shape, layout, cluster, software, length, habits):
    """Seconds of one step, as a dict of its parts: "compute", "tensor", "sends", "bubble" and "data"."""
    layer = layer_seconds(shape, layout, cluster, software, length, habits)
    tokens = layout.micro_batch * length / layout.tensor
    head = 6 * shape.head * tokens / (software.reached * cluster.peak)
    stage = longest_stage(shape.layers, layout.pipeline, head / layer)
    # One micro-batch in the busiest stage:
    compute = stage * layer
    tensor = stage * gather_seconds(shape, layout, cluster, length, habits.recompute) * (1 - habits.hidden)
    sends = send_seconds(shape, layout, cluster, length, habits.pieces) * (1 - habits.hidden)
    # The whole step:
    bubble = (layout.pipeline - 1) / habits.pieces * (compute + tensor + sends)
    data = data_seconds(shape, layout, cluster, habits.zero, habits.summed)
    data -= min(habits.data_hidden * data, layout.micro_batches * compute)
    return {"compute": layout.micro_batches * compute, "tensor": layout.micro_batches * tensor,
            "sends": layout.micro_batches * sends, "bubble": bubble, "data": data}


class Run(NamedTuple):
    """A training run: what `seconds` wants to know, and what was published."""

    name: str
    shape: object
    layout: Layout
    cluster: Cluster
    length: int
    habits: Habits
    published: float = math.nan
    """Tokens/s of each GPU."""

    @property
    def gpus(self):
        return self.layout.data * self.layout.tensor * self.layout.pipeline

    def tokens_per_second(self, software):
        """Of each GPU, predicted."""
        layout = self.layout
        tokens = layout.data * layout.micro_batches * layout.micro_batch * self.length
        step = seconds(self.shape, layout, self.cluster, software, self.length, self.habits)
        return tokens / self.gpus / sum(step.values())

    def error(self, software):
        """Predicted over published, less 1."""
        return self.tokens_per_second(software) / self.published - 1


def fit(runs, software, numbers):
    """`software` with those of its `numbers` (names) changed for which the errors of `runs` are smallest.

    Tries each number a little larger and a little smaller, keeps what helps, and takes ever smaller steps. A share
    above 1 says that the runs cannot tell the numbers apart, or that they used another format than the peak's.
    """
    def worse(tried):
        return sum(math.log1p(run.error(tried)) ** 2 for run in runs)

    step = 0.1
    while step > 1e-3:
        tries = [software._replace(**{number: getattr(software, number) * factor})
                 for number in numbers for factor in (1 + step, 1 / (1 + step))]
        best = min(tries, key=worse)
        if worse(best) < worse(software):
            software = best
        else:
            step /= 2
    return software


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
