"""What the DDP lesson shows of GPUs: what one GPU lets you try, and, on two, overlap and three ways to train."""

import statistics
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.experiments import experiment, in_ranks, milliseconds


def gather(mine, rows, rank):
    """Only rank 0, where the rows come together, may say where to put them."""
    places = list(rows) if rank == 0 else None
    dist.gather(mine, places, dst=0)


def scatter(mine, rows, rank):
    """Only rank 0, whose numbers are dealt out, may say which."""
    parts = list(mine.split(1)) if rank == 0 else None
    dist.scatter(rows[0, :1], parts, src=0)


#: By name: what a rank calls with its own numbers, and with a row of zeros for each rank, to be filled.
COLLECTIVES = {
    "broadcast": lambda mine, rows, rank: dist.broadcast(mine, 0),
    "all_reduce": lambda mine, rows, rank: dist.all_reduce(mine),
    "reduce": lambda mine, rows, rank: dist.reduce(mine, 0),
    "gather": gather,
    "all_gather": lambda mine, rows, rank: dist.all_gather(list(rows), mine),
    "scatter": scatter,
    "reduce_scatter": lambda mine, rows, rank: dist.reduce_scatter(rows[0, :1], list(mine.split(1))),
    "all_to_all": lambda mine, rows, rank: dist.all_to_all_single(rows[0], mine),
    "barrier": lambda mine, rows, rank: dist.barrier(),
}


@experiment(gpus=1, seconds=5, wanted=1)
def collectives():
    """Which collectives can you try with one GPU?

    One rank over nccl, and two ranks over gloo that share the GPU, call each with tensors on the GPU. What rank 0 holds
    afterwards is compared with what it holds on the CPU, over gloo.
    """
    result = {}
    groups = {"one rank over nccl": (1, "nccl"), "two ranks over gloo": (2, "gloo")}
    for group, (nprocs, backend) in groups.items():
        on_gpu = in_ranks(after_each, nprocs, "cuda:0", backend=backend)[0]
        on_cpu = in_ranks(after_each, nprocs, "cpu", backend="gloo")[0]
        result[group] = {}
        for name in COLLECTIVES:
            as_on_cpu = on_gpu[name] == on_cpu[name]
            result[group][name] = "the same" if as_on_cpu else on_gpu[name]
    return result


def after_each(device):
    """What this rank holds after each collective, or why it was refused: {name: its numbers and its rows}"""
    return {name: after(collective, device) for name, collective in COLLECTIVES.items()}


def after(collective, device):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    mine = torch.arange(1, world_size + 1, device=device) * 10**rank
    rows = torch.zeros(world_size, world_size, dtype=int, device=device)
    try:
        collective(mine, rows, rank)
    except RuntimeError as error:
        return {"refused": str(error).partition("\n")[0]}
    return {"numbers": mine.tolist(), "rows": rows.tolist()}


@collectives.tells
def collectives_in_words(result):
    sentences = []
    for group, calls in result.items():
        title = group[0].upper() + group[1:]
        sentences.append(f"{title}: {one_group_in_words(calls)}")
    return " ".join(sentences)


def one_group_in_words(calls):
    others = {name: after_call for name, after_call in calls.items() if after_call != "the same"}
    same = len(calls) - len(others)
    words = f"**{same} of {len(calls)}** collectives run, and leave in rank 0 what they leave there on the CPU."
    for name, after_call in others.items():
        words += f" `{name}`: {after_call.get('refused', after_call)}."
    return words


@experiment(gpus=1, seconds=4, wanted=1)
def two_ranks_over_nccl():
    """What does NCCL say when two ranks use the same GPU?

    Both form a group over nccl with GPU 0 as their device, and add up a one from each.
    """
    first, second = in_ranks(sum_over_nccl, 2)
    return {"rank 0": first, "rank 1": second}


def sum_over_nccl():
    """The sum of a one in each rank, as text, or NCCL's words; both ranks use GPU 0."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl", device_id=device)
        ones = torch.ones(1, device=device)
        dist.all_reduce(ones)
        return f"{ones.item():g}"
    except RuntimeError as error:
        return str(error).strip()


@two_ranks_over_nccl.tells
def two_ranks_in_words(result):
    # Of two refusals, the one that names the GPU: the other rank may only have lost its peer.
    words = max(result.values(), key=lambda words: "GPU" in words)
    if words == "2":
        return "This NCCL lets two ranks use the same GPU: the sum of a one in each rank is **2**."
    refusal = words.splitlines()[-1]
    about_number = ""
    if "both on CUDA device" in refusal:
        about_number = (
            f" The number {refusal.split()[-1]} is not torch's number of the GPU. "
            "NCCL prints `busId`, the GPU's place on the PCI bus, in hexadecimal "
            "([its source](https://github.com/NVIDIA/nccl/blob/master/src/init.cc))."
        )
    return f"NCCL refuses: **{refusal}**.{about_number} The whole message:\n\n```text\n{words}\n```"


@experiment(gpus=1, seconds=5, wanted=2, small={"sizes": (1, 2)})
def gloo_with_tensors_on_the_gpu(sizes=(1, 4, 16, 64)):
    """How long does an all-reduce over gloo take, when two ranks share a GPU?

    Median of five, by the CPU's clock, with tensors on the GPU and with tensors on the CPU. The copy of such a tensor
    from the GPU to the CPU and back is measured, too.
    """
    return in_ranks(all_reduces_and_copies, 2, sizes, backend="gloo")[0]


def all_reduces_and_copies(sizes):
    torch.cuda.set_device(0)  # the same one for both ranks
    return {mib: all_reduce_and_copies(mib) for mib in sizes}


def all_reduce_and_copies(mib):
    numbers = mib * 2**18  # of 4 bytes
    on_cpu = torch.zeros(numbers)
    on_gpu = torch.zeros(numbers, device="cuda")
    pinned = on_cpu.pin_memory()
    return {
        "CPU": wall_ms(lambda: dist.all_reduce(on_cpu)),
        "GPU": wall_ms(lambda: dist.all_reduce(on_gpu)),
        "copies": wall_ms(lambda: on_gpu.copy_(pinned.copy_(on_gpu))),
    }


def wall_ms(work):
    times = []
    for _ in range(6):
        dist.barrier()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])  # the first call prepares what later ones use


@gloo_with_tensors_on_the_gpu.draws
def gloo_drawn(result):
    figure, ax = plt.subplots(figsize=(7, 2.8))
    sizes = [int(mib) for mib in result]
    for place, look in (("CPU", "o-"), ("GPU", "s--")):
        times = [row[place] for row in result.values()]
        ax.loglog(sizes, times, look, label=f"tensors on the {place}")
    ax.set(title="An all-reduce over gloo, two ranks", xlabel="MiB", ylabel="ms", xticks=sizes, xticklabels=sizes)
    ax.minorticks_off()
    ax.legend()
    labels = []
    for mib, row in result.items():
        labels.append(f"{mib} MiB: CPU {row['CPU']:.2f}, GPU {row['GPU']:.2f}")
    figure.set_label("Milliseconds of an all-reduce over gloo: " + "; ".join(labels))


@gloo_with_tensors_on_the_gpu.tells
def gloo_in_words(result):
    largest = list(result)[-1]
    row = result[largest]
    longer = row["GPU"] / row["CPU"]
    return (
        f"An all-reduce of {largest} MiB takes {row['CPU']:.1f} ms with tensors on the CPU "
        f"and {row['GPU']:.1f} ms with tensors on the GPU, **{longer:.2f} times** as long. "
        f"To copy {largest} MiB from the GPU to the CPU and back takes {row['copies']:.1f} ms by itself."
    )


def linear_layers(number, width):
    layers = [nn.Linear(width, width) for _ in range(number)]
    return nn.Sequential(*layers)


@experiment(gpus=2, seconds=10, small={"width": 16, "repeats": 2})
def overlap(width=4096, repeats=20):
    """How much does DDP gain on two GPUs by sending during backward?

    Milliseconds of forward and backward of eight layers of 67 MB by the GPU's clock, median of 20. By hand, each
    gradient is all-reduced by itself after backward; DDP with one bucket for all cannot send before backward ends.
    """
    return in_ranks(backwards, 2, width, repeats, backend="nccl")[0]


def backwards(width, repeats):
    x = torch.randn(width, width, device="cuda")

    def ms(by_hand=False, **options):
        model = linear_layers(8, width).cuda()
        if not by_hand:
            model = DistributedDataParallel(model, device_ids=[x.device.index], **options)

        def step():
            model.zero_grad()
            model(x).square().mean().backward()
            if by_hand:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)

        return milliseconds(step, repeats)

    return {
        "by hand, after backward": ms(by_hand=True),
        "DDP, one bucket": ms(bucket_cap_mb=10_000),
        "DDP, buckets as it makes them": ms(),
    }


@overlap.tells
def overlap_in_words(result):
    by_hand, one_bucket, buckets = result.values()
    return (
        f"With DDP's buckets, forward and backward take {buckets:.1f} ms. "
        f"By hand they take {by_hand:.1f} ms, **{by_hand / buckets:.2f} times** as long, "
        f"and with one bucket for all gradients {one_bucket:.1f} ms."
    )


@experiment(gpus=2, seconds=10, small={"width": 16, "batches": (8,), "steps": 2})
def three_ways(width=2048, batches=(128, 8192), steps=20):
    """How long do 10,000 samples take on one GPU, on two driven by one process (nn.DataParallel), and on two by DDP?

    Four layers; SGD; the fastest of 20 steps, by the CPU's clock. The batch is that of all ranks together.
    """
    # DDP comes first: its ranks are forked, which must be before this process touches CUDA.
    by_ddp = {}
    for batch in batches:
        ranks = in_ranks(ddp_seconds, 2, width, batch, steps, backend="nccl")
        by_ddp[batch] = ranks[0]

    def wrap(net):
        return nn.DataParallel(net, device_ids=[0, 1])

    result = {}
    for batch in batches:
        result[batch] = {
            "one GPU": seconds(lambda net: net, width, batch, batch, steps),
            "DataParallel": seconds(wrap, width, batch, batch, steps),
            "DDP": by_ddp[batch],
        }
    return result


def ddp_seconds(width, batch, steps):
    def wrap(net):
        return DistributedDataParallel(net, device_ids=[dist.get_rank()])

    return seconds(wrap, width, batch // 2, batch, steps)


def seconds(wrap, width, samples, batch, steps):
    """For 10,000 samples, if this process computes `samples` of a batch."""
    model = wrap(linear_layers(4, width).cuda())
    x = torch.randn(samples, width, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 10_000 / batch * min(times)


@three_ways.tells
def three_ways_in_words(result):
    factors = []
    for batch, row in result.items():
        ddp = row["one GPU"] / row["DDP"]
        data_parallel = row["one GPU"] / row["DataParallel"]
        factors.append(f"batch {batch}: **{ddp:.2f} times** by DDP, {data_parallel:.2f} times by nn.DataParallel")
    return "Two GPUs are so many times as fast as one: " + "; ".join(factors) + "."
