"""What mixed precision shows of a GPU: products by format and shape, training steps, batches, autocast's choices."""

import math
import time

import matplotlib.pyplot as plt
import torch
from torch.nn import functional
from torch.nn.functional import cross_entropy

from helpers.experiments import attempt, experiment, milliseconds, peak_mib
from helpers.models import GPT

KINDS = ("float32", "TF32", "bfloat16", "float16", "float8", "float8, fast sums")
#: TFLOP/s without sparsity, of the SXM cards: https://www.nvidia.com/en-us/data-center/h100/, …/h200/.
DATA_SHEET = {"float32": 67, "TF32": 494, "bfloat16": 989, "float16": 989, "float8": 1979, "float8, fast sums": 1979}
ON_THAT_SHEET = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
#: By name: the arguments of `stepping`.
TRAININGS = {
    "float32": {"tf32": False},
    "TF32": {},
    "autocast bfloat16": {"dtype": torch.bfloat16},
    "autocast float16, scaler": {"dtype": torch.float16},
}
OTHER_START = "autocast bfloat16, other start"
LAYOUTS = ("channels first", "channels_last")
SMALL_GPT = {"width": 1024, "layers": 4, "heads": 16, "vocabulary": 32768, "length": 1024}
TINY_GPT = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64, "length": 8}  # for a rehearsal


def use_tf32(allowed):
    """Let float32 products and convolutions read TF32, or all bits."""
    precision = "tf32" if allowed else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision


# Products.

def random_matrices(n):
    return [torch.randn(n, n, device="cuda") for _ in range(2)]


def eight_bits(matrix):
    """A matrix in float8, and the factor that brings it back. Its largest number becomes float8's largest."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = largest / matrix.abs().max()
    scaled = (matrix * scale).to(torch.float8_e4m3fn)
    return scaled, 1 / scale


def product(kind, a, b):
    """A function that multiplies a by b, in this kind of number."""
    use_tf32(kind == "TF32")
    if kind.startswith("float8"):
        return product_in_eight_bits(a, b, fast_sums="fast" in kind)
    dtype = torch.float32 if kind == "TF32" else getattr(torch, kind)
    left = a.to(dtype)
    right = b.to(dtype)
    return lambda: left @ right


def product_in_eight_bits(a, b, fast_sums):
    left, left_factor = eight_bits(a)
    # `_scaled_mm` takes its second matrix column by column: as the transposed of one that lies row by row.
    right_by_rows, right_factor = eight_bits(b.t().contiguous())

    def multiply():
        return torch._scaled_mm(left, right_by_rows.t(), scale_a=left_factor, scale_b=right_factor,
                                out_dtype=torch.bfloat16, use_fast_accum=fast_sums)

    return multiply


def tflops(kind, n):
    """What the GPU alone reaches: it is busy with large products until Python has queued all that is measured."""
    multiply = product(kind, *random_matrices(n))
    large = torch.empty(8192, 8192, device="cuda", dtype=torch.half)
    calls = max(1, 4096 // n)  # a small product would take less time than the events around it

    def multiply_often():
        return [multiply() for _ in range(calls)]

    def keep_busy():
        return [large @ large for _ in range(4)]

    ms = milliseconds(multiply_often, repeats=7, warm_up=2, ahead=keep_busy) / calls
    return 2 * n**3 / ms / 1e9


def rates(kind, sizes):
    return {n: tflops(kind, n) for n in sizes}


def relative_error(kind, n):
    torch.manual_seed(0)
    a, b = random_matrices(n)
    exact = a.double() @ b.double()
    multiply = product(kind, a, b)
    difference = multiply().double() - exact
    return (difference.norm() / exact.norm()).item()


def microseconds_to_launch(kind, n, calls=100):
    """What Python needs until it has queued a product, whether the GPU is done or not."""
    multiply = product(kind, *random_matrices(n))
    multiply()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        multiply()
    return (time.perf_counter() - began) / calls * 1e6


@experiment(gpus=1, seconds=5, wanted=1, small={"sizes": (128,), "checked": 32})
def products(sizes=(512, 1024, 2048, 4096, 8192, 16384), checked=2048):
    """How many TFLOP/s does a product of two matrices reach in each number format, and how wrong is it?

    An n×n product takes 2n³ operations. Median of 7 times between CUDA events, random normal numbers; the products wait
    in the GPU's queue, so the events count none of Python's time. The error is that of a product at n = 2,048 against
    float64. float8 is e4m3 with one scale a matrix, by `torch._scaled_mm`.
    """
    return {
        "card": torch.cuda.get_device_name(),
        "checked": checked,
        "GPU alone": True,  # records without it counted some of Python's time
        "µs to launch": microseconds_to_launch("bfloat16", sizes[0]),
        "TFLOP/s": {kind: attempt(rates, kind, sizes) for kind in KINDS},
        "error": {kind: attempt(relative_error, kind, checked) for kind in KINDS},
    }


def numbers(row):
    """{size: value}, which is empty where the card refused."""
    return {int(n): value for n, value in row.items() if n != "refused"}


def rates_by_kind(result):
    """{kind: {size: TFLOP/s}} of the kinds that the card did not refuse."""
    by_kind = {kind: numbers(row) for kind, row in result["TFLOP/s"].items()}
    return {kind: by_size for kind, by_size in by_kind.items() if by_size}


def refusals(rows):
    """In words: what the card refused."""
    refused = {name: row["refused"] for name, row in rows.items() if "refused" in row}
    return "".join(f"\n\n{name} was refused: `{message}`" for name, message in refused.items())


@products.draws
def products_drawn(result):
    figure, ax = plt.subplots(figsize=(7, 3.5))
    for kind, row in result["TFLOP/s"].items():  # a kind that was refused is in the legend, too
        by_size = numbers(row)
        ax.plot(list(by_size), list(by_size.values()), "o-", label=kind)
    ax.set(title="Products by number format", xlabel="n (an n×n product)", ylabel="TFLOP/s", yscale="log")
    ax.set_xscale("log", base=2)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    lines_in_words = []
    for kind, by_size in rates_by_kind(result).items():
        points = ", ".join(f"{rate:,.0f} at n = {n:,}" for n, rate in by_size.items())
        lines_in_words.append(f"{kind}: {points}")
    figure.set_label("TFLOP/s of n×n products, on logarithmic scales: " + "; ".join(lines_in_words))


@products.tells
def products_in_words(result):
    best = {kind: max(by_size.values()) for kind, by_size in rates_by_kind(result).items()}
    sheet = DATA_SHEET if result["card"] in ON_THAT_SHEET else {}
    nvidia = ("\nThe data sheet is NVIDIA's, for [H100](https://www.nvidia.com/en-us/data-center/h100/) and "
              "[H200](https://www.nvidia.com/en-us/data-center/h200/) (SXM), without sparsity.")
    source = nvidia if sheet else ""

    in_bfloat16 = numbers(result["TFLOP/s"]["bfloat16"])
    smallest = min(in_bfloat16)
    launch = result["µs to launch"]
    flops = 2 * smallest**3
    most_from_python = flops / launch / 1e6
    fastest = (f"In bfloat16 a product reaches **{best['bfloat16']:,.0f} TFLOP/s**, in float32 with all its bits "
               f"{best['float32']:,.0f}.")
    from_python = (f"At n = {smallest}, Python takes {launch:.1f} µs to launch a product in bfloat16. So a loop of "
                   f"these does not get beyond about {most_from_python:,.0f} TFLOP/s, however fast the GPU is.")
    alone = (f"The GPU alone, with products that wait in its queue, reaches {in_bfloat16[smallest]:,.0f} TFLOP/s at "
             "this size.")
    with_python = (
        "Where a product takes the GPU less time than that, the events counted Python's time, too (lesson 08). So on "
        "its left, the picture shows how fast Python launches products, and not how fast the GPU is.")
    clock = alone if "GPU alone" in result else with_python  # until 2026-11-27, the queue was empty at first
    table = products_table(best, sheet, result["error"])
    refused = refusals(result["TFLOP/s"])
    return f"{fastest} {from_python} {clock}\n\n{table}{source}{refused}"


def products_table(best, sheet, errors):
    """A row for each kind of number; `sheet` is empty where the data sheet is of other cards."""
    table = "| | best TFLOP/s | × float32 | data sheet | relative error |\n|---|--:|--:|--:|--:|\n"
    for kind, rate in best.items():
        faster = rate / best["float32"]
        promised = compared_with_sheet(rate, sheet[kind]) if sheet else "not compared"
        error = errors[kind]
        table += f"| {kind} | {rate:,.0f} | {faster:.1f} | {promised} | {error:.1e} |\n"
    return table


def compared_with_sheet(rate, promised):
    return f"{promised:,}, reached {rate / promised:.0%}"


@experiment(gpus=1, seconds=3, small={"sizes": (32, 33, 36)})
def shapes(sizes=(4096, 4097, 4098, 4100, 4104, 4160)):
    """What does one more row and column cost: is a product of 4,097×4,097 as fast as one of 4,096×4,096?

    TFLOP/s of n×n products in bfloat16 and TF32: median of 7.
    """
    return {kind: rates(kind, sizes) for kind in ("bfloat16", "TF32")}


@shapes.tells
def shapes_in_words(result):
    bf16 = numbers(result["bfloat16"])
    tf32 = numbers(result["TF32"])
    even, odd, *_ = bf16
    table = "| n | bfloat16 rows begin at multiples of | bfloat16, TFLOP/s | TF32, TFLOP/s |\n|--:|--:|--:|--:|\n"
    aligned = []
    others = []
    for n, rate in bf16.items():
        row_bytes = 2 * n
        multiple = math.gcd(row_bytes, 128)
        table += f"| {n:,} | {multiple} bytes | {rate:,.0f} | {tf32[n]:,.0f} |\n"
        if row_bytes % 16 == 0:
            aligned.append(rate)
        else:
            others.append(rate)
    holds = "each size whose rows begin at multiples of 16 bytes is faster than each of the others"
    fails = "multiples of 16 bytes do not tell the fast sizes from the slow ones"
    rule = holds if min(aligned) > max(others) else fails
    share = bf16[odd] / bf16[even]
    share_in_tf32 = tf32[odd] / tf32[even]
    return (f"In bfloat16, n = {odd:,} reaches **{share:.0%}** of the TFLOP/s of n = {even:,}; "
            f"in TF32, {share_in_tf32:.0%}. In bfloat16, {rule}. (NVIDIA recommends such multiples: [its "
            "guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/).)"
            f"\n\n{table}")


# Training steps.

def stepping(model, optimizer, next_batch, tf32=True, dtype=None, scale=2.0**16):
    """A function that makes one training step, and returns its loss without waiting for it; and the scaler it uses.

    scale: the scaler's first one. By default it is torch's own.
    """
    use_tf32(tf32)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale, enabled=dtype is torch.float16)
    autocast_dtype = dtype or torch.bfloat16  # autocast wants a dtype also where it is switched off

    def step():
        inputs, targets = next_batch()
        with torch.amp.autocast("cuda", autocast_dtype, enabled=dtype is not None):
            # The model's output gets no name, which would keep it in memory during backward.
            loss = cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step, scaler


def gpt_step(gpt, batch, seed=0, **settings):
    """A training step of a GPT on made-up text: word number r is as frequent as 1/r (Zipf's law)."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = GPT(**gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    torch.manual_seed(0)  # the same text for all, whatever the weights

    def next_batch():
        uniform = torch.rand(batch, gpt["length"] + 1, device="cuda")
        tokens = (gpt["vocabulary"] ** uniform).long() - 1
        return tokens[:, :-1], tokens[:, 1:]

    return stepping(model, optimizer, next_batch, **settings)


def convolutions_step(net, images, side, channels_last, **settings):
    """A training step of a net of torchvision that learns the same made-up pictures by heart."""
    from torchvision.models import get_model

    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch.device("cuda"):
        model = get_model(net).to(memory_format=layout)
    pictures = torch.randn(images, 3, side, side, device="cuda").to(memory_format=layout)
    labels = torch.randint(1000, (images,), device="cuda")
    # Not fused: after a skipped first step, fused SGD goes on with a momentum that nobody has set (torch 2.11 to 2.15).
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    # With torch's first scale, a ResNet's gradients are infinite in float16, and its first steps are skipped.
    return stepping(model, optimizer, lambda: (pictures, labels), scale=2.0**8, **settings)


def trained(make_step, steps, **arguments):
    """Time, peak memory and loss of so many steps: three to warm up, one for the memory, the others are timed."""
    step, scaler = make_step(**arguments)
    first_scale = scaler.get_scale()
    losses = []

    def step_and_keep_loss():
        losses.append(step())

    ms = milliseconds(step_and_keep_loss, repeats=steps - 4)
    peak = peak_mib(step_and_keep_loss)
    loss = torch.stack(losses[-3:]).mean().item()
    skipped = math.log2(first_scale / scaler.get_scale())  # each skipped step halves the scale
    return {"ms": ms, "peak MiB": peak, "loss": loss, "first scale": first_scale, "skipped": round(skipped)}


@experiment(gpus=1, seconds=11, wanted=1, small={"gpt": TINY_GPT, "batch": 2, "steps": 5})
def gpt_formats(gpt=SMALL_GPT, batch=8, steps=50):
    """How long does a step of a small GPT take in each format, with how much memory, and is its loss the same?

    A GPT of 4 layers, 1,024 wide, 32,768 words; 8 times 1,024 tokens a step; AdamW. All formats see the same 50 batches
    of made-up text, and start from the same weights; one more run starts from others. Median time of a step; the loss
    is the mean of the last three steps.
    """
    result = {}
    for name, settings in TRAININGS.items():
        result[name] = attempt(trained, gpt_step, steps, gpt=gpt, batch=batch, **settings)
    settings = TRAININGS["autocast bfloat16"]
    result[OTHER_START] = attempt(trained, gpt_step, steps, gpt=gpt, batch=batch, seed=1, **settings)
    return result


def steps_table(result):
    """A row for each way to train."""
    table = "| | ms a step | peak MiB | loss | skipped steps |\n|---|--:|--:|--:|--:|\n"
    for name, row in result.items():
        if "refused" in row:
            table += f"| {name} | {row['refused']} | | | |\n"
        else:
            table += f"| {name} | {row['ms']:.1f} | {row['peak MiB']:,.0f} | {row['loss']:.4f} | {row['skipped']} |\n"
    return table


def ran(result):
    """The trainings that the card did not refuse: {name: row}."""
    return {name: row for name, row in result.items() if "refused" not in row}


def with_a_loss(result):
    """The trainings that ran and have a loss: {name: row}. One without may have skipped all its steps."""
    return {name: row for name, row in ran(result).items() if math.isfinite(row["loss"])}


def comparison(result):
    """In words: which of these trainings is the fastest, how it compares with float32, and which do not count."""
    rows = with_a_loss(result)
    times = {name: row["ms"] for name, row in rows.items()}
    first = next(iter(rows))
    fastest = min(times, key=times.get)
    steps = times[first] / times[fastest]
    memory = rows[fastest]["peak MiB"] / rows[first]["peak MiB"]
    of_these = "" if rows == ran(result) else "Of the trainings whose loss is a number, "
    shorter = (f"{fastest} is the fastest: it makes **{steps:.1f} steps** in the time of one in {first}, and needs "
               f"{memory:.0%} of its memory.")
    no_shorter = f"**{first}** is the fastest: no step is shorter."
    words = no_shorter if fastest == first else shorter
    return of_these + words + without_a_loss(result)


def without_a_loss(result):
    """In words: which trainings ran and do not count, if there are any."""
    rows = {name: row for name, row in ran(result).items() if not math.isfinite(row["loss"])}
    listed = "; ".join(f"{name} (it skipped {row['skipped']} steps)" for name, row in rows.items())
    fused = (" The optimizer was SGD with momentum and `fused=True`. *Skipped steps*, above, shows on the CPU what "
             "that does beside a scaler.")
    is_newer = any("first scale" in row for row in rows.values())  # the ResNet's optimizer was fused until 2026-11-27
    cause = "" if is_newer else fused
    words = f" In the others, the loss is not a number: {listed}.{cause}"
    return words if rows else ""


@gpt_formats.tells
def gpt_in_words(result):
    formats = {name: row for name, row in result.items() if name != OTHER_START}
    words = comparison(formats)
    losses = {name: row["loss"] for name, row in with_a_loss(result).items()}
    other = losses.pop(OTHER_START, None)
    if other and "autocast bfloat16" in losses:
        apart = max(losses.values()) - min(losses.values())
        by_start = abs(other - losses["autocast bfloat16"])
        compared = "more" if by_start > apart else "less"
        words += (f" After the same steps, the losses of the formats are at most {apart:.4f} apart. Another start of "
                  f"the weights changes the loss by {by_start:.4f}, which is {compared}.")
    return f"{words}\n\n{steps_table(result)}"


@experiment(gpus=1, seconds=12, wanted=1, small={"net": "squeezenet1_1", "images": 1, "side": 17, "formats": ("TF32",)})
def resnet_formats(net="resnet50", images=64, side=224, steps=15, formats=tuple(TRAININGS)):
    """How long does a step of a ResNet-50 take in each format, and does `channels_last` make it shorter?

    64 made-up pictures of 224×224 a step, the same ones in each; SGD with momentum. Median time of 11 steps, loss of
    the last three.
    """
    result = {}
    for name in formats:
        for layout in LAYOUTS:
            result[f"{name}, {layout}"] = attempt(
                trained, convolutions_step, steps,
                net=net, images=images, side=side, channels_last=layout == "channels_last",
                **TRAININGS[name])
    return result


@resnet_formats.tells
def resnet_in_words(result):
    rows = with_a_loss(result)
    factors = []
    for name in TRAININGS:
        first, last = (rows.get(f"{name}, {layout}") for layout in LAYOUTS)
        if first and last:
            factor = last["ms"] / first["ms"]
            factors.append(f"{factor:.2f}× in {name}")
    listed = "; ".join(factors)
    changes = f" `channels_last` changes the time of a step by these factors (below 1× is shorter): {listed}."
    about_layout = changes if factors else ""
    return f"{comparison(result)}{about_layout}\n\n{steps_table(result)}"


@experiment(gpus=1, seconds=4, small={"gpt": TINY_GPT, "cap_gib": 0.0002})
def batch_sizes(gpt=SMALL_GPT, cap_gib=40):
    """Which batch keeps the GPU busy, and which one no longer fits?

    A small GPT in autocast bfloat16, 1,024 tokens a sample. The batch doubles until it does not fit. We allow
    the process 40 GiB, so that cards with more memory refuse the same batch.
    """
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap_gib / memory))
    batches = {}
    batch = 1
    while True:
        batches[batch] = attempt(trained, gpt_step, 9, gpt=gpt, batch=batch, dtype=torch.bfloat16)
        if "refused" in batches[batch]:
            return {"GiB allowed": min(cap_gib, memory), "batches": batches}
        batch *= 2


def rates_and_peaks(result):
    """{batch: samples a second} and {batch: peak MiB} of the batches that fit."""
    rates = {}
    peaks = {}
    for key, row in ran(result["batches"]).items():
        batch = int(key)
        rates[batch] = 1000 * batch / row["ms"]
        peaks[batch] = row["peak MiB"]
    return rates, peaks


@batch_sizes.draws
def batch_sizes_drawn(result):
    rates, peaks = rates_and_peaks(result)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    left.plot(list(rates), list(rates.values()), "o-")
    left.set_ylabel("samples/s")
    right.plot(list(peaks), list(peaks.values()), "o-")
    right.set_ylabel("peak MiB")
    for ax in (left, right):
        ax.set(xlabel="samples in a batch", ylim=(0, None))
        ax.set_xscale("log", base=2)
    figure.suptitle("Speed and memory by batch")
    points = []
    for batch, rate in rates.items():
        points.append(f"{batch}: {rate:,.0f} samples/s, peak {peaks[batch]:,.0f} MiB")
    figure.set_label("By samples in a batch: " + "; ".join(points))


@batch_sizes.tells
def batch_sizes_in_words(result):
    rates, peaks = rates_and_peaks(result)
    best = max(rates.values())
    enough = next(batch for batch, rate in rates.items() if rate > 0.9 * best)
    largest = max(peaks)
    share = peaks[enough] / peaks[largest]
    more_samples = max(1, largest - 1)  # never 0, also where only a batch of 1 fits
    mib_a_sample = (peaks[largest] - peaks[1]) / more_samples
    too_large = list(result["batches"])[-1]
    refused = result["batches"][too_large]["refused"]
    allowed = result["GiB allowed"]
    return (f"From a batch of **{enough}** on, the GPU trains at least 90% of the {best:,.0f} samples a second "
            f"that it reaches at best, with {share:.0%} of the memory of the largest batch "
            f"that fits, {largest}. One more sample takes {mib_a_sample:,.0f} MiB. A batch of {too_large} does not fit "
            f"into the {allowed:.1f} GiB that we allow: `{refused}`")


# Autocast.

#: Functions of torch that take one matrix, and two; of torch.nn.functional that take two; and some that take more.
OF_ONE = ("abs acos asin cos cosh erfinv exp expm1 log log10 log1p log2 mean norm prod reciprocal relu rsqrt sigmoid "
          "sin sinh sqrt std sum tan tanh")
OF_TWO = "add atan2 cdist div dist matmul mm mul"
LOSSES = "binary_cross_entropy_with_logits cosine_similarity l1_loss linear mse_loss smooth_l1_loss"
OTHERS = {
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "cat": lambda x: torch.cat([x, x]),
    "cross_entropy": lambda x: cross_entropy(x, x.argmax(1)),
    "cumprod": lambda x: x.cumprod(0),
    "cumsum": lambda x: x.cumsum(0),
    "einsum": lambda x: torch.einsum("ij,jk", x, x),
    "conv2d": lambda x: functional.conv2d(x[None, None], x[None, None]),
    "gelu": functional.gelu,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "log_softmax": lambda x: x.log_softmax(1),
    "max_pool2d": lambda x: functional.max_pool2d(x[None], 2),
    "pow": lambda x: x**2,
    "silu": functional.silu,
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(1),
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
    "softplus": functional.softplus,
}


def operations():
    """{name: a function of one matrix}"""
    by_name = {name: getattr(torch, name) for name in OF_ONE.split()}
    for name in OF_TWO.split():
        by_name[name] = with_itself(getattr(torch, name))
    for name in LOSSES.split():
        by_name[name] = with_itself(getattr(functional, name))
    return by_name | OTHERS


def with_itself(function):
    """A function of two matrices as one of a single matrix."""
    return lambda x: function(x, x)


def choice(operation, device):
    """What autocast does with an operation: looked up in the dtypes that come out of float32 and of bfloat16."""
    full = torch.rand(8, 8, device=device)
    with torch.amp.autocast(device, torch.bfloat16):
        from_full = operation(full).dtype
        from_half = operation(full.bfloat16()).dtype
    if from_full == torch.bfloat16:
        return "bfloat16"
    if from_half == torch.float32:
        return "float32"
    return "as it comes"


def choices(device):
    """{name: what autocast does with this operation}"""
    return {name: choice(operation, device) for name, operation in operations().items()}


@experiment(gpus=1, seconds=2)
def autocast_choices():
    """Which operations does autocast run in 16 bits on a GPU, which in float32, and where does the CPU differ?

    Each of about sixty operations runs on a float32 and on a bfloat16 tensor, under autocast with bfloat16. We look at
    the dtype that comes out.
    """
    return {"cuda": choices("cuda"), "cpu": choices("cpu")}


@autocast_choices.tells
def autocast_in_words(result):
    gpu = result["cuda"]
    cpu = result["cpu"]
    names = {"bfloat16": [], "float32": [], "as it comes": []}
    for name, chosen in gpu.items():
        names[chosen].append(f"`{name}`")
    table = ""
    for chosen, row in names.items():
        listed = ", ".join(row)
        table += f"| {chosen} | {len(row)} | {listed} |\n"
    differing = [f"`{name}`" for name in gpu if cpu[name] != gpu[name]]
    and_which = ": " + ", ".join(differing) if differing else ""
    in_float32 = len(names["float32"])
    in_bfloat16 = len(names["bfloat16"])
    return (f"Of {len(gpu)} operations, autocast runs **{in_float32} in float32** on this GPU and "
            f"{in_bfloat16} in bfloat16, whatever arrives. The CPU's lists differ from the GPU's for "
            f"{len(differing)} of them{and_which}.\n\n"
            f"| on this GPU | | operations |\n|---|--:|---|\n{table}")
