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
TOP = {}  # all changes together
for change in RUNGS.values():
    TOP.update(change)


def text(rows, length, vocabulary):
    """Rows of tokens with something to learn: of five tokens, four follow from the one before."""
    torch.manual_seed(0)
    known = min(5000, vocabulary)
    tokens = torch.randint(known, (length, rows))
    surprising = torch.rand(length, rows) < 0.2
    for before, now in enumerate(range(1, length)):
        following = (31 * tokens[before] + 7) % known
        tokens[now] = torch.where(surprising[now], tokens[now], following)
    return tokens.T.cuda()


def flops(shape):
    """FLOPs of training, for each token, as MFU counts them."""
    hidden = 8 * shape["width"] / 3  # of a net with a gate that has as many weights
    model = Shape(shape["layers"], shape["width"], hidden, shape["vocabulary"], tied=False)
    return model.flops(shape["length"])


def training(shape, larger=0, steps=5, warm_up=2):
    """A function that trains a GPT, always from the same first weights. However often it compiles, it does so once."""
    vocabulary = shape["vocabulary"] + larger
    with torch.device("cuda"):
        net = models.GPT(**{**shape, "vocabulary": vocabulary})
    called = net
    if dist.is_initialized():
        called = DistributedDataParallel(net, [torch.cuda.current_device()])
    # No text has a word of the larger part.
    data = text(4 * (warm_up + steps), shape["length"] + 1, shape["vocabulary"])

    def loss_of(rows):
        return cross_entropy(called(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    compiled_loss_of = torch.compile(loss_of)

    def measure(texts=1, tf32=False, bf16=False, fused_attention=False, fused_optimizer=False, compiled=False):
        """Tokens a second of this rank, the loss of the last step, and the seconds of the first one."""
        torch.manual_seed(0)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        precision = "high" if tf32 else "highest"
        torch.set_float32_matmul_precision(precision)
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=fused_optimizer or None)
        attention = scaled_dot_product_attention if fused_attention else models.attention_by_hand
        forward = compiled_loss_of if compiled else loss_of
        clock = []  # where the first step begins, where it ends, where the steps begin that count
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
        tokens = steps * texts * shape["length"]
        return {
            "tokens a second": tokens / seconds,
            "loss": loss.item(),
            "first step, s": clock[1] - clock[0],
        }

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
    ms_of_product = milliseconds(lambda: a @ a)
    product = 2 * size**3 / ms_of_product / 1e9  # TFLOP/s
    # By how much the vocabulary is larger: the only change that needs another network.
    trainings = {larger: training(shape, larger, **steps) for larger in (0, 47)}
    settings = {}
    so_far = {}
    for rung, change in RUNGS.items():
        so_far = {**so_far, **change}
        settings[rung] = so_far
    runs = {rung: [] for rung in RUNGS}
    for number in range(passes):
        upwards = number % 2 == 0
        order = RUNGS if upwards else reversed(RUNGS)
        for rung in order:
            options = dict(settings[rung])
            train = trainings[options.pop("larger", 0)]
            runs[rung].append(attempt(train, **options))
    return {"rungs": runs, "product": product, "MFLOP": flops(shape) / 1e6}


def compile_here():
    """Have torch.compile compile in this process: a pool of compilers would outlive the training."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1


def by_rung(result):
    """{rung: tokens a second of its runs}, of rungs that no card has refused."""
    speeds = {}
    for rung, runs in result["rungs"].items():
        if not any("refused" in run for run in runs):
            speeds[rung] = [run["tokens a second"] for run in runs]
    return speeds


@gpu_ladder.draws
def ladder_drawn(result):
    from types import SimpleNamespace

    from lessons.speed_ladder.ladder import draw_ladder

    _, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    speeds = by_rung(result)
    rungs = [SimpleNamespace(title=rung, kept=True) for rung in speeds]
    ceiling = 1e6 * result["product"] / result["MFLOP"]  # tokens a second
    draw_ladder(ax, rungs, speeds, {"product of matrices": ceiling}, title="A GPT on one GPU")
    ax.set_xlabel("tokens a second")


@gpu_ladder.tells
def ladder_in_words(result):
    speeds = by_rung(result)
    typical = {rung: statistics.median(runs) for rung, runs in speeds.items()}
    bottom, *_, top = typical
    gain = typical[top] / typical[bottom]
    share = share_of_product(typical[top], result)
    flops_of_masked = 6 * SHAPE["layers"] * SHAPE["width"] * SHAPE["length"]  # for each token
    masked = flops_of_masked / flops(SHAPE)
    words = (
        f'From "{bottom}" to "{top}", training becomes **{gain:.1f} times** as fast. '
        f"At the top it does {share:.0%} of the FLOP/s of a product of large matrices in bfloat16, "
        f"{result['product']:,.0f} TFLOP/s. "
        "(We count FLOPs as for MFU, with all scores of attention. "
        f"The causal mask makes half of them unnecessary: {masked:.0%} of the FLOPs that we count. "
        "Fused attention skips them.)"
    )
    how_to_read = (
        "All rungs begin with the same seed and read the same texts. "
        "The loss is that of the last step, on texts that the model has not read before. "
        'From "four texts in a batch" on, it has read four times as many by then. '
        "A change is *known* if each run of one rung is faster than each run of the other."
    )
    return "\n\n".join([words, which_and_why(typical, result["rungs"]), how_to_read, table(result)])


def share_of_product(speed, result):
    """What part of the FLOP/s of a large product a training does with so many tokens a second."""
    return speed * result["MFLOP"] / 1e6 / result["product"]


def table(result):
    """A row a rung, with its gain over the rung before; those that a card has refused come last."""
    speeds = by_rung(result)
    lines = [
        "| rung | tokens a second | µs a token | gain | | of the product's FLOP/s | loss |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    before = next(iter(speeds))
    for rung, runs in speeds.items():
        speed = statistics.median(runs)
        gain = speed / statistics.median(speeds[before])
        known = "known" if never_meet(speeds[before], runs) else "not known"
        if rung == before:
            known = ""  # the first rung changes nothing
        share = share_of_product(speed, result)
        loss = result["rungs"][rung][0]["loss"]
        microseconds = 1e6 / speed  # a token
        lines.append(f"| {rung} | {speed:,.0f} | {microseconds:.1f} | {gain:.2f}× | {known} "
                     f"| {share:.0%} | {loss:.3f} |")
        before = rung
    for rung, runs in result["rungs"].items():
        refusals = [run["refused"] for run in runs if "refused" in run]
        if refusals:
            lines.append(f"| {rung} | {refusals[0]} | | | | | |")
    return "\n".join(lines)


def never_meet(runs, others):
    """Whether each run of one rung is faster than each run of the other."""
    slower, faster = sorted((runs, others), key=statistics.median)
    return max(slower) < min(faster)


def which_and_why(typical, rungs):
    """Which rung gives most, and what the numbers, or other lessons, say of three of them."""
    microseconds = {rung: 1e6 / speed for rung, speed in typical.items()}  # a token
    gains = {}
    saves = {}
    for before, rung in itertools.pairwise(microseconds):
        gains[rung] = microseconds[before] / microseconds[rung]
        saves[rung] = microseconds[before] - microseconds[rung]
    most = max(gains, key=gains.get)
    explanations = [
        why_a_larger_vocabulary(gains),
        why_bfloat16_gives_little(gains, saves, microseconds),
        when_compiling_pays(saves, rungs["compile"][0]),
    ]
    words = f'Most comes from "{most}": {gains[most]:.2f}×.'
    return " ".join([words, *filter(None, explanations)])  # those that these numbers need


def why_a_larger_vocabulary(gains):
    gain = gains.get("vocabulary 50,304", 1)  # where it was refused, it gives nothing
    words = (
        f'"vocabulary 50,304" gives {gain:.2f}×, although its 47 words more stand in no text. '
        "Without them, each token has 50,257 scores at the end, one for each word. "
        "That is an odd number, so in bfloat16 most rows of scores do not begin at a multiple of 16 bytes. "
        "Lesson 07 measures what this costs a product of matrices: 4,097 × 4,097 beside 4,096 × 4,096."
    )
    return words if gain > 1.2 else ""


def why_bfloat16_gives_little(gains, saves, microseconds):
    # The other two rungs come later. One that a card has refused saves nothing.
    attention = saves.get("fused attention", 0)
    vocabulary = saves.get("vocabulary 50,304", 0)
    takes = microseconds.get("bfloat16", 0)
    words = (
        f'But "bfloat16" gives only {gains.get("bfloat16", 1):.2f}×. '
        f"Most of the time then goes into what later rungs remove: of the {takes:.1f} µs that a token takes, "
        f'"fused attention" saves {attention:.1f} and "vocabulary 50,304" {vocabulary:.1f}.'
    )
    none_refused = {"bfloat16", "fused attention", "vocabulary 50,304"} <= gains.keys()
    return words if none_refused and gains["bfloat16"] < 1.2 else ""


def when_compiling_pays(saves, first_run):
    if "compile" not in saves:
        return ""
    seconds = first_run["first step, s"]
    saved = saves["compile"]
    price = f'The first step of "compile" takes {seconds:.0f} s.'
    # Seconds over microseconds a token are millions of tokens.
    paid_back = f" That is paid back after {seconds / saved:,.0f} million tokens." if saved > 0 else ""
    return price + paid_back


@experiment(gpus=2, seconds=60, small={
    "shape": {"width": 16, "layers": 1, "heads": 2, "vocabulary": 51, "length": 8}, "steps": 1, "warm_up": 1})
def gpu_ladder_ddp(shape=SHAPE, **steps):
    """How much faster is the top of the GPU ladder on two GPUs, with DDP?

    Tokens a second of all ranks together, over five steps after two of warm-up.
    """
    [alone] = in_ranks(top_of_ladder, 1, shape, steps, backend="nccl")
    both = in_ranks(top_of_ladder, 2, shape, steps, backend="nccl")
    return {"one GPU": alone, "two GPUs": sum(both)}


def top_of_ladder(shape, steps):
    compile_here()
    options = dict(TOP)
    train = training(shape, options.pop("larger"), **steps)
    return train(**options)["tokens a second"]


@gpu_ladder_ddp.tells
def ddp_in_words(result):
    alone = result["one GPU"]
    both = result["two GPUs"]
    return (
        f"With DDP, two GPUs train **{both / alone:.2f} times** as many tokens a second as one: "
        f"{both:,.0f} and {alone:,.0f}. "
        "Each computes a batch of its own, so together they take twice the batch."
    )
