"""What the lesson on long texts shows of GPUs: attention on one, of one text and of many in a row, and cut on two."""

import time
from functools import partial

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from helpers.experiments import attempt, experiment, in_ranks, milliseconds, peak_mib
from helpers.models import attention_by_hand

HEADS, WIDTH = 16, 128
by_hand, fused = partial(attention_by_hand, is_causal=True), partial(scaled_dot_product_attention, is_causal=True)


def qkv(tokens, heads=HEADS, width=WIDTH):
    """Queries, keys and values of one text. Kernels that are fused take four dimensions, no fewer."""
    torch.manual_seed(0)
    return [torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)]


def measured(way, given):
    """What forward and backward take: milliseconds (median of 5), peak MiB, and the seconds of the first call."""
    slope = torch.randn_like(given[0])

    def step():
        torch.autograd.grad(way(*given), given, slope)

    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    return {"ms": milliseconds(step, repeats=5), "peak MiB": peak_mib(step), "first call, s": first}


def error(result, exact):
    """How far a result is from the exact one, as a share of it."""
    return ((result.double() - exact).norm() / exact.norm()).item()


def outputs_and_gradients(way, given):
    slope = torch.linspace(-1, 1, given[0].numel(), device="cuda").bfloat16()  # the same numbers, whatever the dtype
    out = way(*given)
    return torch.cat([out.detach(), *torch.autograd.grad(out, given, slope.view_as(out).to(out.dtype))])


def in_float64(given):
    return [one.detach().double().requires_grad_() for one in given]


@experiment(gpus=1, seconds=5, small={"lengths": (16, 64), "heads": 2, "width": 16})
def attention(lengths=(1024, 4096, 16384, 65536), heads=HEADS, width=WIDTH):
    """What does attention over a long text cost, with all scores in memory, and fused into one kernel?

    Causal attention in bfloat16, 16 heads of 128, forward and backward. The error is that of output and gradients
    together, against float64, at the smallest length.
    """
    ways, result = {"all scores": by_hand, "fused": fused}, {}
    for name, way in ways.items():
        result[name] = {tokens: attempt(lambda way, *shape: measured(way, qkv(*shape)), way, tokens, heads, width)
                        for tokens in lengths}
    given = qkv(lengths[0], heads, width)
    exact = outputs_and_gradients(by_hand, in_float64(given))
    return result | {"errors": {name: error(outputs_and_gradients(way, given), exact) for name, way in ways.items()}}


@attention.draws
def attention_drawn(result):
    fig, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for name, mark in ("all scores", "o-"), ("fused", "s--"):
        ran = {int(tokens): row for tokens, row in result[name].items() if "ms" in row}
        for ax, what in zip(axes, ("ms", "peak MiB"), strict=True):
            ax.loglog(list(ran), [row[what] for row in ran.values()], mark, label=name)
            ax.set(title="Attention, forward and backward", xlabel="tokens", ylabel=what)
    axes[0].legend()
    fig.set_label("Milliseconds and peak MiB of attention by length of the text, all scores in memory and fused.")


@attention.tells
def attention_in_words(result):
    scores, fast = result["all scores"], result["fused"]
    both = [tokens for tokens in scores if "ms" in scores[tokens] and "ms" in fast[tokens]]
    slow, quick = scores[both[-1]], fast[both[-1]]
    lines = [f"| {int(tokens):,} | {cell(scores[tokens])} | {cell(fast[tokens])} |" for tokens in scores]
    return "\n".join((
        f"Over {int(both[-1]):,} tokens, fused attention is **{slow['ms'] / quick['ms']:.1f} times** as fast as "
        f"attention that keeps all scores, and its peak is {quick['peak MiB']:,.0f} MiB in place of "
        f"{slow['peak MiB']:,.0f} MiB. Twice as many tokens have four times as many scores. The fused kernel computes "
        "them block by block, as your ring does, and never writes the whole table. The results differ from float64 "
        f"by {result['errors']['all scores']:.1e} with all scores and by {result['errors']['fused']:.1e} fused.\n",
        "| tokens | all scores | fused |", "|---:|---:|---:|", *lines))


def cell(row):
    """A row of what was measured, or the card's first two sentences, for a table."""
    if "refused" in row:
        return ". ".join(row["refused"].split(". ")[:2])
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
    given, place = qkv(tokens, heads, width), torch.arange(tokens, device="cuda")
    ends = torch.randint(tokens, (documents - 1,), device="cuda").sort().values
    document = torch.bucketize(place, ends)

    def allowed(_, __, query, key):
        return (query >= key) & (document[query] == document[key])

    mask = allowed(None, None, place[:, None], place)

    def masked(q, k, v):
        return (q @ k.mT / width**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    def flex():
        blocks = create_block_mask(allowed, None, None, tokens, tokens, device="cuda")
        return partial(torch.compile(flex_attention, dynamic=False), block_mask=blocks)

    with torch.no_grad():
        exact = masked(*(one[:, :1].double() for one in given))

    def run(make):
        way = make()
        return measured(way, given) | {"error": error(way(*given)[:, :1], exact)}

    makers = {"all scores, with a mask": lambda: masked, "fused, across documents": lambda: fused,
              "FlexAttention": flex}
    result = {name: attempt(run, make) for name, make in makers.items()}
    return {"ways": result, "tokens": tokens, "pairs": mask.sum().item() / (tokens * (tokens + 1) / 2)}


@packed_documents.tells
def packed_in_words(result):
    ways, flex = result["ways"], result["ways"]["FlexAttention"]
    ran = {name: row["ms"] for name, row in ways.items() if "ms" in row}
    text = (f"Of all causal pairs of {result['tokens']:,} tokens, {result['pairs']:.0%} lie within one document. " + (
        f"FlexAttention was not measured: **{flex.get('refused')}**" if "refused" in flex else
        "FlexAttention computes only blocks that hold such pairs. It is **"
        f"{ran['fused, across documents'] / flex['ms']:.1f} times** as fast as fused attention over the whole row, "
        f"after its first call, which compiles for {flex['first call, s']:.0f} s. By the pairs alone it would be "
        f"{1 / result['pairs']:.1f} times. But a block that holds a single such pair is computed whole, and the two "
        "kernels need not be equally fast.")
        + " Fused attention without a mask mixes documents, as its error shows.\n")
    errors = {name: f"{ways[name]['error']:.1%}" for name in ran}
    lines = [f"| {name} | {cell(row)} | {errors.get(name, '')} |" for name, row in ways.items()]
    return "\n".join((text, "| way | forward and backward | error |", "|---|---:|---:|", *lines))


def cut(q, k, v, is_causal):
    """Attention of q, k and v, [heads, this rank's tokens, width] each: two ranks trade tokens for heads."""
    own = all_to_all(torch.stack([q, k, v], dim=1), split=0, join=2)
    out = scaled_dot_product_attention(*own[None].unbind(2), is_causal=is_causal)  # four dimensions: see `qkv`
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
    parts = torch.cat(x.unsqueeze(0).chunk(dist.get_world_size(), dim=split + 1)).contiguous()
    return torch.cat(Exchange.apply(parts).unbind(0), dim=join)


@experiment(gpus=2, seconds=8, small={"tokens": 64, "heads": 2, "width": 16})
def attention_on_two(tokens=65536, heads=HEADS, width=WIDTH):
    """How much faster is attention over one long text on two GPUs, which trade tokens for heads?

    Fused causal attention in bfloat16, 16 heads of 128, over 65,536 tokens, forward and backward.
    """
    two, _ = in_ranks(measured_cut, 2, tokens // 2, heads, width, backend="nccl")
    return {"one GPU": measured(fused, qkv(tokens, heads, width)), "two GPUs": two}


def measured_cut(*shape):
    return measured(lambda *given: cut(*(one[0] for one in given), is_causal=True)[None], qkv(*shape))


@attention_on_two.tells
def on_two_in_words(result):
    one, two = result["one GPU"], result["two GPUs"]
    return (f"Two GPUs are **{one['ms'] / two['ms']:.2f} times** as fast as one: {two['ms']:.1f} ms in place of "
            f"{one['ms']:.1f} ms, with their messages. Each holds {two['peak MiB']:,.0f} MiB at most, "
            f"one GPU alone {one['peak MiB']:,.0f} MiB.")
