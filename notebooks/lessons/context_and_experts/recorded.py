"""What the lesson on long texts shows of GPUs: attention on one, of one text and of many in a row, and cut on two."""

import time
from functools import partial

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from helpers.experiments import attempt, experiment, in_ranks, milliseconds, peak_mib
from helpers.models import attention_by_hand

HEADS = 16
WIDTH = 128
by_hand = partial(attention_by_hand, is_causal=True)
fused = partial(scaled_dot_product_attention, is_causal=True)


def qkv(tokens, heads=HEADS, width=WIDTH):
    """Queries, keys and values of one text. Kernels that are fused take four dimensions, no fewer."""
    torch.manual_seed(0)
    shape = (1, heads, tokens, width)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def measured(way, inputs):
    """What forward and backward take: milliseconds (median of 5), peak MiB, and the seconds of the first call."""
    slope = torch.randn_like(inputs[0])

    def step():
        torch.autograd.grad(way(*inputs), inputs, slope)

    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    return {"ms": milliseconds(step, repeats=5), "peak MiB": peak_mib(step), "first call, s": first}


def error(result, exact):
    """How far a result is from the exact one, as a share of it."""
    difference = result.double() - exact
    return (difference.norm() / exact.norm()).item()


def outputs_and_gradients(way, inputs):
    first, *_ = inputs
    slope = torch.linspace(-1, 1, first.numel(), device="cuda").bfloat16()  # the same numbers, whatever the dtype
    slope = slope.view_as(first).to(first.dtype)
    out = way(*inputs)
    gradients = torch.autograd.grad(out, inputs, slope)
    return torch.cat([out.detach(), *gradients])


def in_float64(inputs):
    return [tensor.detach().double().requires_grad_() for tensor in inputs]


def measured_over(way, tokens, heads, width):
    return measured(way, qkv(tokens, heads, width))


@experiment(gpus=1, seconds=5, small={"lengths": (16, 64), "heads": 2, "width": 16})
def attention(lengths=(1024, 4096, 16384, 65536), heads=HEADS, width=WIDTH):
    """What does attention over a long text cost, with all scores in memory, and fused into one kernel?

    Causal attention in bfloat16, 16 heads of 128, forward and backward. The error is that of output and gradients
    together, against float64, at the smallest length.
    """
    ways = {"all scores": by_hand, "fused": fused}
    result = {}
    for name, way in ways.items():
        result[name] = {}
        for tokens in lengths:
            result[name][tokens] = attempt(measured_over, way, tokens, heads, width)

    inputs = qkv(lengths[0], heads, width)
    exact = outputs_and_gradients(by_hand, in_float64(inputs))
    result["errors"] = {}
    for name, way in ways.items():
        result["errors"][name] = error(outputs_and_gradients(way, inputs), exact)
    return result


@attention.draws
def attention_drawn(result):
    fig, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for ax, quantity in zip(axes, ("ms", "peak MiB"), strict=True):
        for name, mark in (("all scores", "o-"), ("fused", "s--")):
            values = {int(tokens): row[quantity] for tokens, row in result[name].items() if quantity in row}
            ax.loglog(list(values), list(values.values()), mark, label=name)
        ax.set(title="Attention, forward and backward", xlabel="tokens", ylabel=quantity)
    axes[0].legend()
    fig.set_label("Milliseconds and peak MiB of attention by length of the text, all scores in memory and fused.")


@attention.tells
def attention_in_words(result):
    by_length = result["all scores"]
    fused_by_length = result["fused"]
    table = "| tokens | all scores | fused |\n|---:|---:|---:|"
    longest = None  # the longest text that neither has refused
    for tokens, row in by_length.items():
        fused_row = fused_by_length[tokens]
        table += f"\n| {int(tokens):,} | {cell(row)} | {cell(fused_row)} |"
        if "ms" in row and "ms" in fused_row:
            longest = tokens
    slow = by_length[longest]
    quick = fused_by_length[longest]
    faster = slow["ms"] / quick["ms"]
    errors = result["errors"]
    return (f"Over {int(longest):,} tokens, fused attention is **{faster:.1f} times** as fast as "
            f"attention that keeps all scores, and its peak is {quick['peak MiB']:,.0f} MiB in place of "
            f"{slow['peak MiB']:,.0f} MiB. Twice as many tokens have four times as many scores. The fused kernel "
            "computes them block by block, as your ring does, and never writes the whole table. The results differ "
            f"from float64 by {errors['all scores']:.1e} with all scores and by {errors['fused']:.1e} fused.\n\n"
            f"{table}")


def cell(row):
    """A row of what was measured, or the card's first two sentences, for a table."""
    if "refused" in row:
        sentences = row["refused"].split(". ")
        return ". ".join(sentences[:2])
    return f"{row['ms']:,.2f} ms, {row['peak MiB']:,.0f} MiB"


@experiment(gpus=1, seconds=13, small={"tokens": 128, "documents": 4, "heads": 2, "width": 16})
def packed_documents(tokens=16384, documents=16, heads=HEADS, width=WIDTH):
    """Many documents lie in one row of tokens. How much faster is attention that skips pairs from two documents?

    Causal attention in bfloat16, 16 heads of 128, forward and backward, over 16 documents of random lengths. The error
    is that of the first head's output, against float64 with a mask.
    """
    import torch._inductor.config as inductor
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inductor.compile_threads = 1  # compile in this process, not in a pool of them
    inputs = qkv(tokens, heads, width)
    place = torch.arange(tokens, device="cuda")
    ends = torch.randint(tokens, (documents - 1,), device="cuda").sort().values
    document = torch.bucketize(place, ends)

    def allowed(_, __, query, key):
        return (query >= key) & (document[query] == document[key])

    mask = allowed(None, None, place[:, None], place)

    def masked(q, k, v):  # as one expression: a name would keep the scores in memory
        return (q @ k.mT / width**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    def flex():
        blocks = create_block_mask(allowed, None, None, tokens, tokens, device="cuda")
        return partial(torch.compile(flex_attention, dynamic=False), block_mask=blocks)

    with torch.no_grad():
        exact = masked(*(tensor[:, :1].double() for tensor in inputs))

    def run(make):
        way = make()
        row = measured(way, inputs)
        row["error"] = error(way(*inputs)[:, :1], exact)
        return row

    result = {
        "all scores, with a mask": attempt(run, lambda: masked),
        "fused, across documents": attempt(run, lambda: fused),
        "FlexAttention": attempt(run, flex),
    }
    causal_pairs = tokens * (tokens + 1) / 2
    return {"ways": result, "tokens": tokens, "pairs": mask.sum().item() / causal_pairs}


@packed_documents.tells
def packed_in_words(result):
    ways = result["ways"]
    pairs = result["pairs"]
    table = "| way | forward and backward | error |\n|---|---:|---:|"
    for name, row in ways.items():
        wrong = f"{row['error']:.1%}" if "error" in row else ""
        table += f"\n| {name} | {cell(row)} | {wrong} |"
    flex = flex_in_words(ways["FlexAttention"], ways["fused, across documents"], pairs)
    return (f"Of all causal pairs of {result['tokens']:,} tokens, {pairs:.0%} lie within one document. "
            f"{flex} Fused attention without a mask mixes documents, as its error shows.\n\n{table}")


def flex_in_words(flex, without_mask, pairs):
    if "refused" in flex:
        return f"FlexAttention was not measured: **{flex['refused']}**"
    faster = without_mask["ms"] / flex["ms"]
    by_pairs = 1 / pairs
    return (f"FlexAttention computes only blocks that hold such pairs. It is **{faster:.1f} times** as fast as "
            "fused attention over the whole row, after its first call, which compiles for "
            f"{flex['first call, s']:.0f} s. By the pairs alone it would be {by_pairs:.1f} times. But a block that "
            "holds a single such pair is computed whole, and the two kernels need not be equally fast.")


def cut(q, k, v, is_causal):
    """Attention of q, k and v, [heads, this rank's tokens, width] each: two ranks trade tokens for heads."""
    own = all_to_all(torch.stack([q, k, v], dim=1), split=0, join=2)
    own_q, own_k, own_v = own[None].unbind(2)  # four dimensions: see `qkv`
    out = scaled_dot_product_attention(own_q, own_k, own_v, is_causal=is_causal)
    return all_to_all(out[0], split=1, join=0)


class Exchange(torch.autograd.Function):
    """Part r of `parts` goes to rank r; gradients come back the way that the parts went."""

    @staticmethod
    def forward(ctx, parts):
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient.contiguous())


def all_to_all(x, split, join):
    """Send a part of dimension `split` to each rank; join what comes along dimension `join`."""
    chunks = x.unsqueeze(0).chunk(dist.get_world_size(), dim=split + 1)
    parts = torch.cat(chunks).contiguous()
    received = Exchange.apply(parts)
    return torch.cat(received.unbind(0), dim=join)


@experiment(gpus=2, seconds=8, small={"tokens": 64, "heads": 2, "width": 16})
def attention_on_two(tokens=65536, heads=HEADS, width=WIDTH):
    """How much faster is attention over one long text on two GPUs, which trade tokens for heads?

    Fused causal attention in bfloat16, 16 heads of 128, over 65,536 tokens, forward and backward.
    """
    # The ranks first: they are forked, which works only until this process has touched CUDA.
    of_rank_0, _ = in_ranks(measured_over, 2, cut_on_two, tokens // 2, heads, width, backend="nccl")
    return {"one GPU": measured_over(fused, tokens, heads, width), "two GPUs": of_rank_0}


def cut_on_two(q, k, v):
    return cut(q[0], k[0], v[0], is_causal=True)[None]


@attention_on_two.tells
def on_two_in_words(result):
    alone = result["one GPU"]
    cut_in_two = result["two GPUs"]
    faster = alone["ms"] / cut_in_two["ms"]
    return (f"Two GPUs are **{faster:.2f} times** as fast as one: {cut_in_two['ms']:.1f} ms in place of "
            f"{alone['ms']:.1f} ms, with their messages. Each holds {cut_in_two['peak MiB']:,.0f} MiB at most, "
            f"one GPU alone {alone['peak MiB']:,.0f} MiB.")
