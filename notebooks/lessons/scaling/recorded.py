"""What the lesson on cost models shows of one GPU: how much of its peak a step reaches, and attention alone."""

import numpy
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from helpers.experiments import attempt, experiment, milliseconds
from helpers.instruments.costs import Shape
from helpers.models import GPT

#: FLOP/s in bfloat16 with dense matrices, by NVIDIA's data sheets.
PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12,
         "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA A100-SXM4-80GB": 312e12}
LAYERS = 4
ROWS = ((1024, 2048), (2048, 2048), (4096, 2048), (2048, 8192), (2048, 32768))


def step_milliseconds(width, length, tokens, vocabulary, head):
    """The median time of a training step; everything is in bfloat16."""
    texts = torch.randint(vocabulary, (tokens // length, length + 1), device="cuda")
    with torch.device("cuda"):  # the weights are drawn there
        model = GPT(width, LAYERS, width // head, vocabulary, length).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return milliseconds(step, repeats=3, warm_up=2)


def attention_milliseconds(width, length, tokens, head):
    """The median time of forward and backward of fused causal attention in all layers, with nothing around it."""
    q, k, v, slope = torch.randn(4, tokens // length, width // head, length, head, device="cuda", dtype=torch.bfloat16)
    given = [one.requires_grad_() for one in (q, k, v)]
    return LAYERS * milliseconds(lambda: torch.autograd.grad(
        scaled_dot_product_attention(*given, is_causal=True), given, slope), repeats=5)


def product_tflops(size):
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / milliseconds(lambda: a @ b) / 1e9


@experiment(gpus=1, seconds=10, wanted=1, small={
    "rows": ((32, 16), (64, 16)), "tokens": 32, "vocabulary": 50, "head": 16, "size": 64})
def one_gpu_mfu(rows=ROWS, tokens=32768, vocabulary=32768, head=128, size=8192):
    """How much of one GPU's peak does a training step reach, in wide and narrow models and with long texts?

    A GPT of four layers in bfloat16, with fused attention and AdamW, 32,768 tokens a step. MFU counts FLOPs as
    `costs.Shape.flops` does, with all of attention's scores. The speed of attention alone counts half of them, as the
    planner's `layer_seconds` does, because the causal mask leaves the others out.
    """
    result = []
    for width, length in rows:
        took = attempt(lambda *row: {"step ms": step_milliseconds(*row, tokens, vocabulary, head),
                                     "attention ms": attention_milliseconds(*row, tokens, head)}, width, length)
        result.append({"width": width, "length": length} | took)
    return {"rows": result, "tokens": tokens, "vocabulary": vocabulary, "product": product_tflops(size),
            "peak": PEAKS.get(torch.cuda.get_device_name(), 0) / 1e12}


def rates(result, row):
    """(MFU, the same without scores that are masked, TFLOP/s of attention, of all else, FLOPs without those scores).

    FLOPs without those scores are what the planner's `layer_seconds` counts.
    """
    width, length, tokens = row["width"], row["length"], result["tokens"]
    shape = Shape(LAYERS, width, 8 * width / 3, result["vocabulary"], tied=False)  # this GPT has no gate: 8 · width²
    scores = 6 * LAYERS * width * length * tokens  # half of them
    every = shape.flops(length) * tokens
    whole = 1e9 * row["step ms"] * (result["peak"] or result["product"])
    return (every / whole, (every - scores) / whole, scores / row["attention ms"] / 1e9,
            (every - 2 * scores) / (row["step ms"] - row["attention ms"]) / 1e9, every - scores)


def fitted(result, rows):
    """The planner's two numbers from rows of one length: (share of the peak that is reached, narrow)."""
    peak = 1e12 * (result["peak"] or result["product"])
    slower = [row["step ms"] / 1e3 * peak / rates(result, row)[-1] for row in rows]  # 1/reached · (1 + narrow/width)
    slope, at_infinity = numpy.polyfit([1 / row["width"] for row in rows], slower, 1)
    return 1 / at_infinity, slope / at_infinity


@one_gpu_mfu.tells
def mfu_in_words(result):
    ran = [row for row in result["rows"] if "refused" not in row]
    by_width = [row for row in ran if row["length"] == ran[0]["length"]]
    best, longest = max(by_width, key=lambda row: row["width"]), max(ran, key=lambda row: row["length"])
    reached, narrow = fitted(result, by_width)
    mfu, done, alone, *_ = rates(result, longest)
    of = f"the data sheet's {result['peak']:.0f} TFLOP/s" if result["peak"] else "the largest product's FLOP/s"
    lines = []
    for row in ran:
        counted, computed, of_attention, of_all_else, _ = rates(result, row)
        lines.append(f"| {row['width']:,} | {row['length']:,} | {row['step ms']:,.0f} | {counted:.0%} | "
                     f"{computed:.0%} | {row['attention ms'] / row['step ms']:.0%} | {of_attention:,.0f} | "
                     f"{of_all_else:,.0f} |")
    lines += [f"| {row['width']:,} | {row['length']:,} | {row['refused']} | | | | | |"
              for row in result["rows"] if "refused" in row]
    return "\n".join((
        f"At width {best['width']:,} and length {best['length']:,} a step reaches **{rates(result, best)[0]:.0%}** of "
        f"{of}. That is its MFU. A product of large matrices alone reaches {result['product']:,.0f} TFLOP/s.\n",
        f"With texts of {longest['length']:,} tokens, the MFU is {mfu:.0%}. But MFU counts all scores of attention, "
        "and the causal mask lets the kernel skip half of them. Without those, the step reaches "
        f"{done:.0%}. So compare MFUs only at the same length. Attention takes "
        f"{longest['attention ms'] / longest['step ms']:.0%} of this step. It runs at {alone:,.0f} TFLOP/s, not "
        f"counting what it skips: {alone / result['product']:.0%} of the product's speed. (The planner does not count "
        "that either, and assumes one speed for both.)\n",
        f"Fitted to the rows of length {best['length']:,}, the planner's *reached* is {reached:.0%} and its *narrow* "
        f"{narrow:,.0f}.\n",
        "| width | length | ms a step | MFU | without masked scores | attention's share of the time | "
        "TFLOP/s of attention | of all else |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|", *lines))
