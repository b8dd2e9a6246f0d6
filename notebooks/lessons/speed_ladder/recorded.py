"""What the lesson on the speed ladder shows of GPUs: a GPT's training, one rung at a time, and its top on two."""

import itertools
import statistics
import time
from unittest.mock import patch

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from helpers import models
from helpers.experiments import attempt, experiment, in_ranks, milliseconds
from helpers.instruments.costs import Shape

#: A GPT of half a billion parameters, as `helpers.models.GPT` builds it, with the vocabulary of GPT-2.
SHAPE = {"width": 2048, "layers": 6, "heads": 32, "vocabulary": 50257, "length": 4096}
#: {rung: what it changes}; each keeps what those before it have changed.
RUNGS = {
    "float32, attention by hand": {},
    "TF32": {"tf32": True},
    "bfloat16": {"bf16": True},
    "fused attention": {"fused_attention": True},
    "fused optimizer": {"fused_optimizer": True},
    "four texts in a batch": {"texts": 4},
    "vocabulary 50,304": {"larger": 47},  # 50,257 is odd, 50,304 is 393 · 128
    "compile": {"compiled": True},
}
TOP = {name: value for change in RUNGS.values() for name, value in change.items()}


def text(rows, length, vocabulary):
    """Rows of tokens with something to learn: of five tokens, four follow from the one before."""
    torch.manual_seed(0)
    known = min(5000, vocabulary)
    tokens = torch.randint(known, (length, rows))
    surprising = torch.rand(length, rows) < 0.2
    for before, now in enumerate(range(1, length)):
        tokens[now] = torch.where(surprising[now], tokens[now], (31 * tokens[before] + 7) % known)
    return tokens.T.cuda()


def flops(shape):
    """FLOPs of training, for each token, as the planner counts them."""
    hidden = 8 * shape["width"] / 3  # of a net with a gate that has as many weights
    return Shape(shape["layers"], shape["width"], hidden, shape["vocabulary"], tied=False).flops(shape["length"])


def training(shape, larger=0, steps=5, warm_up=2):
    """A function that trains a GPT, always from the same first weights. However often it compiles, it does so once."""
    with torch.device("cuda"):
        net = models.GPT(**shape | {"vocabulary": shape["vocabulary"] + larger})
    plain = DistributedDataParallel(net, [torch.cuda.current_device()]) if dist.is_initialized() else net
    data = text(4 * (warm_up + steps), shape["length"] + 1, shape["vocabulary"])

    def loss_of(rows):
        return cross_entropy(plain(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    compiled_loss_of = torch.compile(loss_of)

    def measure(texts=1, tf32=False, bf16=False, fused_attention=False, fused_optimizer=False, compiled=False):
        """Tokens a second of this rank, the loss of the last step, and the seconds of the first one."""
        torch.manual_seed(0)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=fused_optimizer or None)
        attention = scaled_dot_product_attention if fused_attention else models.attention_by_hand
        forward, clock = compiled_loss_of if compiled else loss_of, []
        with patch.object(models, "scaled_dot_product_attention", attention):
            for step, rows in enumerate(data.split(texts)[:warm_up + steps]):
                if step in (0, 1, warm_up):
                    torch.cuda.synchronize()
                    clock.append(time.perf_counter())
                with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                    loss = forward(rows)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - clock[-1]
        return {"tokens a second": steps * texts * shape["length"] / seconds, "loss": loss.item(),
                "first step, s": clock[1] - clock[0]}

    return measure


@experiment(gpus=1, seconds=60, wanted=1, small={
    "shape": {"width": 16, "layers": 1, "heads": 2, "vocabulary": 51, "length": 8}, "size": 64, "passes": 1,
    "steps": 1, "warm_up": 1})
def gpu_ladder(shape=SHAPE, size=8192, passes=3, **steps):
    """How much faster does a GPT train on one GPU after seven rungs, and which rung gives most?

    Tokens a second over five steps of AdamW after two of warm-up, and the loss of the last step. It begins with one
    text of 4,096 tokens in a batch. All rungs are measured upwards, then downwards, then upwards again.
    """
    compile_here()
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    product = 2 * size**3 / milliseconds(lambda: a @ a) / 1e9
    trainings = {larger: training(shape, larger, **steps) for larger in (0, 47)}
    settings, so_far, runs = {}, {}, {name: [] for name in RUNGS}
    for name, change in RUNGS.items():
        settings[name] = so_far = so_far | change
    for number in range(passes):
        for name in reversed(RUNGS) if number % 2 else RUNGS:
            how = dict(settings[name])
            runs[name].append(attempt(trainings[how.pop("larger", 0)], **how))
    return {"rungs": runs, "product": product, "MFLOP": flops(shape) / 1e6}


def compile_here():
    """Have torch.compile compile in this process: a pool of compilers would outlive the training."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1


def by_rung(result):
    """{rung: tokens a second of its runs}, of rungs that no card has refused."""
    return {name: [run["tokens a second"] for run in runs] for name, runs in result["rungs"].items()
            if not any("refused" in run for run in runs)}


@gpu_ladder.draws
def ladder_drawn(result):
    from types import SimpleNamespace

    from lessons.speed_ladder.ladder import draw_ladder

    _, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    speeds = by_rung(result)
    draw_ladder(ax, [SimpleNamespace(title=name, kept=True) for name in speeds], speeds,
                {"product of matrices": 1e6 * result["product"] / result["MFLOP"]}, title="A GPT on one GPU")
    ax.set_xlabel("tokens a second")


@gpu_ladder.tells
def ladder_in_words(result):
    speeds = by_rung(result)
    losses = {name: result["rungs"][name][0]["loss"] for name in speeds}
    typical = {name: statistics.median(runs) for name, runs in speeds.items()}
    share = {name: speed * result["MFLOP"] / 1e6 / result["product"] for name, speed in typical.items()}
    before, *_, top = typical
    masked = 6 * SHAPE["layers"] * SHAPE["width"] * SHAPE["length"] / flops(SHAPE)
    text = (f"From \"{before}\" to \"{top}\", training becomes **{typical[top] / typical[before]:.1f} times** as fast. "
            f"At the top it does {share[top]:.0%} of the FLOP/s of a product of large matrices in bfloat16, "
            f"{result['product']:,.0f} TFLOP/s. (We count FLOPs as for MFU, with all scores of attention. The causal "
            f"mask makes half of them unnecessary: {masked:.0%} of the FLOPs that we count. Fused attention skips "
            f"them.)\n\n{which_and_why(typical, result['rungs'])}\n\n"
            "All rungs begin with the same seed and read the same texts. The loss is that of the last step, on texts "
            "that the model has not read before. From \"four texts in a batch\" on, it has read four times as many by "
            "then. A change is *known* if each run of one rung is faster than each run of the other.")
    lines = ["| rung | tokens a second | µs a token | gain | | of the product's FLOP/s | loss |",
             "|---|---:|---:|---:|---|---:|---:|"]
    for name in speeds:
        low, high = sorted((speeds[before], speeds[name]), key=statistics.median)
        known = "" if name == before else "known" if min(high) > max(low) else "not known"
        lines.append(f"| {name} | {typical[name]:,.0f} | {1e6 / typical[name]:.1f} | "
                     f"{typical[name] / typical[before]:.2f}× | {known} | {share[name]:.0%} | {losses[name]:.3f} |")
        before = name
    refusals = {name: next(run["refused"] for run in runs if "refused" in run)
                for name, runs in result["rungs"].items() if name not in speeds}
    lines += [f"| {name} | {words} | | | | | |" for name, words in refusals.items()]
    return text + "\n\n" + "\n".join(lines)


def which_and_why(typical, rungs):
    """Which rung gives most, and what the numbers, or other lessons, say of three of them."""
    took = {name: 1e6 / speed for name, speed in typical.items()}  # µs a token
    gains = {name: took[before] / took[name] for before, name in itertools.pairwise(took)}
    saves = {name: took[before] - took[name] for before, name in itertools.pairwise(took)}
    most, wider, fused = max(gains, key=gains.get), "vocabulary 50,304", "fused attention"
    odd = (f" \"{wider}\" gives {gains[wider]:.2f}×, although its 47 words more stand in no text. Without them, each "
           "token has 50,257 scores at the end, one for each word. That is an odd number, so in bfloat16 most rows of "
           "scores do not begin at a multiple of 16 bytes. Lesson 07 measures what this costs a product of matrices: "
           "4,097 × 4,097 beside 4,096 × 4,096." if gains.get(wider, 1) > 1.2 else "")
    little = (f" But \"bfloat16\" gives only {gains['bfloat16']:.2f}×. Most of the time then goes into what later "
              f"rungs remove: of the {took['bfloat16']:.1f} µs that a token takes, \"{fused}\" saves "
              f"{saves[fused]:.1f} and \"{wider}\" {saves[wider]:.1f}."
              if gains.get("bfloat16", 2) < 1.2 and {wider, fused} <= saves.keys() else "")
    first = rungs["compile"][0].get("first step, s")
    price = f" The first step of \"compile\" takes {first:.0f} s." if "compile" in saves else ""
    paid = (f" That is paid back after {first / saves['compile']:,.0f} million tokens."
            if saves.get("compile", 0) > 0 else "")
    return f"Most comes from \"{most}\": {gains[most]:.2f}×.{odd}{little}{price}{paid}"


@experiment(gpus=2, seconds=60, small={
    "shape": {"width": 16, "layers": 1, "heads": 2, "vocabulary": 51, "length": 8}, "steps": 1, "warm_up": 1})
def gpu_ladder_ddp(shape=SHAPE, **steps):
    """How much faster is the top of the GPU ladder on two GPUs, with DDP?

    Tokens a second of all ranks together, over five steps after two of warm-up.
    """
    one, two = (in_ranks(top_of_ladder, ranks, shape, steps, backend="nccl") for ranks in (1, 2))
    return {"one GPU": one[0], "two GPUs": sum(two)}


def top_of_ladder(shape, steps):
    compile_here()
    how = dict(TOP)
    return training(shape, how.pop("larger"), **steps)(**how)["tokens a second"]


@gpu_ladder_ddp.tells
def ddp_in_words(result):
    one, two = result.values()
    return (f"With DDP, two GPUs train **{two / one:.2f} times** as many tokens a second as one: {two:,.0f} and "
            f"{one:,.0f}. Each computes a batch of its own, so together they take twice the batch.")
