"""What the lesson on cost models shows of one GPU: how much of its peak a step reaches, and attention alone."""

from typing import NamedTuple

import numpy
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from helpers.experiments import attempt, experiment, milliseconds
from helpers.instruments.costs import Shape
from helpers.models import GPT

#: FLOP/s in bfloat16 with dense matrices, and bytes/s of the memory, by NVIDIA's data sheets.
PEAKS = {
    "NVIDIA H100 80GB HBM3": (989e12, 3350e9),
    "NVIDIA H200": (989e12, 4800e9),
    "NVIDIA A100-SXM4-40GB": (312e12, 1555e9),
    "NVIDIA A100-SXM4-80GB": (312e12, 2039e9),
}
LAYERS = 4
#: Width of the model, and tokens of a text.
ROWS = ((1024, 2048), (2048, 2048), (4096, 2048), (2048, 8192), (2048, 32768))


def step_milliseconds(width, length, tokens, vocabulary, head):
    """The median time of a training step; everything is in bfloat16."""
    texts = torch.randint(vocabulary, (tokens // length, length + 1), device="cuda")
    with torch.device("cuda"):  # the weights are drawn there
        model = GPT(width, LAYERS, width // head, vocabulary, length).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        # The model's output gets no name, which would keep it in memory during backward.
        cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return milliseconds(step, repeats=3, warm_up=2)


def attention_milliseconds(width, length, tokens, head):
    """The median time of forward and backward of fused causal attention in all layers, with nothing around it."""
    shape = (tokens // length, width // head, length, head)
    q, k, v, slope = torch.randn(4, *shape, device="cuda", dtype=torch.bfloat16)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]

    def forward_and_backward():
        output = scaled_dot_product_attention(*inputs, is_causal=True)
        torch.autograd.grad(output, inputs, slope)

    return LAYERS * milliseconds(forward_and_backward, repeats=5)


def product_tflops(size):
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    flops = 2 * size**3
    return flops / milliseconds(lambda: a @ b) / 1e9


@experiment(gpus=1, seconds=10, wanted=1, small={
    "rows": ((32, 16), (64, 16)), "tokens": 32, "vocabulary": 50, "head": 16, "size": 64})
def one_gpu_mfu(rows=ROWS, tokens=32768, vocabulary=32768, head=128, size=8192):
    """How much of one GPU's peak does a training step reach, in wide and narrow models and with long texts?

    A GPT of four layers in bfloat16, with fused attention and AdamW, 32,768 tokens a step. MFU counts FLOPs as
    `costs.Shape.flops` does, with all of attention's scores. The speed of attention alone counts half of them, because
    the causal mask leaves the others out.
    """
    def milliseconds_of(width, length):
        return {"step ms": step_milliseconds(width, length, tokens, vocabulary, head),
                "attention ms": attention_milliseconds(width, length, tokens, head)}

    result = []
    for width, length in rows:
        times = attempt(milliseconds_of, width, length)
        result.append({"width": width, "length": length, **times})
    peak, memory = PEAKS.get(torch.cuda.get_device_name(), (0, 0))
    return {
        "rows": result,
        "tokens": tokens,
        "vocabulary": vocabulary,
        "product": product_tflops(size),
        "peak": peak / 1e12,
        "memory": memory / 1e12,
    }


class Rates(NamedTuple):
    """What a step reaches. Half of attention's scores are masked, and a kernel need not compute them."""

    mfu: float  # with all scores, as a share of the peak
    computed: float  # the same without masked scores
    attention_tflops: float  # without masked scores
    other_tflops: float
    other_flops: float  # in products that are not attention's


def peak_tflops(result):
    """The data sheet's, or, of a card without one, what a large product reaches."""
    return result["peak"] or result["product"]


def rates(result, row):
    """The `Rates` of a row."""
    width = row["width"]
    length = row["length"]
    tokens = result["tokens"]
    shape = Shape(LAYERS, width, 8 * width / 3, result["vocabulary"], tied=False)  # this GPT has no gate: 8 · width²
    all_flops = shape.flops(length) * tokens
    half_of_scores = 6 * LAYERS * width * length * tokens
    flops = all_flops - half_of_scores
    at_peak = 1e9 * row["step ms"] * peak_tflops(result)  # the FLOPs that the step's time has room for
    other_flops = all_flops - 2 * half_of_scores
    other_ms = row["step ms"] - row["attention ms"]
    return Rates(
        mfu=all_flops / at_peak,
        computed=flops / at_peak,
        attention_tflops=half_of_scores / row["attention ms"] / 1e9,
        other_tflops=other_flops / other_ms / 1e9,
        other_flops=other_flops,
    )


def fitted(result, rows):
    """From rows of one length, without attention: (share of the peak that products reach, picoseconds that all else
    takes, of each token and number of a layer's width)."""
    terms = []
    for row in rows:
        products = rates(result, row).other_flops / (1e12 * peak_tflops(result))  # seconds at the peak
        rest = 1e-12 * LAYERS * row["width"] * result["tokens"]
        seconds = (row["step ms"] - row["attention ms"]) / 1e3
        terms.append([products / seconds, rest / seconds])
    slower, picoseconds = numpy.linalg.lstsq(terms, numpy.ones(len(terms)), rcond=None)[0]
    return 1 / slower, picoseconds


@one_gpu_mfu.tells
def mfu_in_words(result):
    rows = [row for row in result["rows"] if "refused" not in row]
    first_length = rows[0]["length"]
    of_first_length = [row for row in rows if row["length"] == first_length]
    widest = max(of_first_length, key=lambda row: row["width"])
    longest = max(rows, key=lambda row: row["length"])
    paragraphs = [
        widest_in_words(result, widest),
        longest_in_words(result, longest),
        fitted_in_words(result, of_first_length),
        mfu_table(result),
    ]
    return "\n\n".join(paragraphs)


def widest_in_words(result, row):
    mfu = rates(result, row).mfu
    data_sheet = f"the data sheet's {result['peak']:.0f} TFLOP/s"
    peak = data_sheet if result["peak"] else "the largest product's FLOP/s"
    return (f"At width {row['width']:,} and length {row['length']:,} a step reaches **{mfu:.0%}** of "
            f"{peak}. That is its MFU. A product of large matrices alone reaches {result['product']:,.0f} TFLOP/s.")


def longest_in_words(result, row):
    reached = rates(result, row)
    of_step = row["attention ms"] / row["step ms"]
    of_product = reached.attention_tflops / result["product"]
    again = 7 / 6 * reached.attention_tflops / peak_tflops(result)
    return (f"With texts of {row['length']:,} tokens, the MFU is {reached.mfu:.0%}. But MFU counts all scores of "
            "attention, and the causal mask lets the kernel skip half of them. Without those, the step reaches "
            f"{reached.computed:.0%}. So compare MFUs only at the same length. Attention takes {of_step:.0%} of this "
            f"step. It runs at {reached.attention_tflops:,.0f} TFLOP/s, not counting what it skips: {of_product:.0%} "
            "of the product's speed. The planner also counts the product that backward does again. So counted, "
            f"attention reaches {again:.0%} of the peak.")


def fitted_in_words(result, rows):
    reached, picoseconds = fitted(result, rows)
    length = rows[0]["length"]
    moved = (f"which is a *traffic* of {picoseconds * result['memory']:.0f} bytes, if the memory moves "
             f"{result['memory']} TB/s" if result["memory"] else "by its memory's bytes/s that is the *traffic*")
    return (f"Fitted to the rows of length {length:,}, without attention, the planner's *reached* is {reached:.0%}. "
            f"All else takes {picoseconds:.0f} ps of each token and number of a layer's width, {moved}.")


def mfu_table(result):
    lines = [
        "| width | length | ms a step | MFU | without masked scores | attention's share of the time | "
        "TFLOP/s of attention | of all else |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    refused_lines = []  # below the others
    for row in result["rows"]:
        begin = f"| {row['width']:,} | {row['length']:,} |"
        if "refused" in row:
            refused_lines.append(f"{begin} {row['refused']} | | | | | |")
        else:
            reached = rates(result, row)
            share = row["attention ms"] / row["step ms"]
            lines.append(f"{begin} {row['step ms']:,.0f} | {reached.mfu:.0%} | {reached.computed:.0%} | {share:.0%} | "
                         f"{reached.attention_tflops:,.0f} | {reached.other_tflops:,.0f} |")
    return "\n".join(lines + refused_lines)
