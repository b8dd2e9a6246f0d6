"""What the data-loading lesson shows of one GPU: pinned memory, a second stream, and how long it waits for photos."""

import io
import math
import os
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from helpers.experiments import attempt, experiment, milliseconds, returned_and_done


def prefetched(batches, side):
    """Each batch on the GPU; the next one is copied on the stream `side`, beside the step."""
    batches = iter(batches)

    def fetch():
        with torch.cuda.stream(side):
            batch = next(batches, None)
            if batch is not None:
                batch = batch.to("cuda", non_blocking=True)
            return batch

    coming = fetch()
    while (batch := coming) is not None:
        here = torch.cuda.current_stream()
        here.wait_stream(side)  # the step comes after its own copy,
        batch.record_stream(here)  # and the batch's memory is not used anew before the step has ended
        coming = fetch()
        yield batch


def copied(batches):
    """Each batch on the GPU; copy and step in the same stream: one after the other."""
    for batch in batches:
        yield batch.to("cuda", non_blocking=True)


@experiment(gpus=1, seconds=2, small={"shape": (32, 3, 16, 16)})
def copies(shape=(32, 3, 224, 224)):
    """How long does Python wait for a copy to the GPU?

    `batch.to("cuda", non_blocking=True)` of 19 MB: milliseconds until it returns, and until the batch is there, by the
    CPU's clock; medians of 10.
    """
    ordinary = torch.rand(shape)
    pinned = ordinary.pin_memory()
    return {
        "MB": ordinary.nbytes / 1e6,
        "ordinary memory": copy_ms(lambda: ordinary),
        "pinned memory": copy_ms(lambda: pinned),
        "pinned in the loop, then copied": copy_ms(ordinary.pin_memory),
    }


def copy_ms(make_batch):
    """[ms until `.to()` returns, ms until the batch is there]"""
    return returned_and_done(lambda: make_batch().to("cuda", non_blocking=True), repeats=10, warm_up=2)


@copies.tells
def copies_in_words(result):
    megabytes = result["MB"]
    _, ordinary_done = result["ordinary memory"]
    pinned_returned, pinned_done = result["pinned memory"]
    in_loop_returned, in_loop_done = result["pinned in the loop, then copied"]
    table = ["| | `.to()` returns after | the batch is there after |", "|---|---|---|"]
    for kind, times in result.items():
        if kind != "MB":
            returned, done = times
            table.append(f"| {kind} | {returned:.2f} ms | {done:.2f} ms |")
    words = (  # MB a millisecond are GB a second
        f"From pinned memory, `.to()` returns after **{pinned_returned:.2f} ms**, "
        f"and the batch of {megabytes:.0f} MB is on the GPU after {pinned_done:.2f} ms. "
        f"That makes {megabytes / ordinary_done:.0f} GB/s from ordinary memory, "
        f"{megabytes / pinned_done:.0f} GB/s from pinned memory. "
        f"If the loop pins the batch itself, pinning and `.to()` keep Python for {in_loop_returned:.2f} ms, "
        f"and the batch is on the GPU after {in_loop_done:.2f} ms. "
        f"That is {in_loop_done / pinned_done:.1f} times as long as from memory that was pinned before, "
        f"and {in_loop_done / ordinary_done:.1f} times as long as from ordinary memory."
    )
    return words + "\n\n" + "\n".join(table)


@experiment(gpus=1, seconds=3, small={"shape": (32, 3, 16, 16), "width": 64, "count": 4})
def overlap(shape=(32, 3, 224, 224), width=2560, count=20):
    """Does a second stream hide the copies behind the steps?

    Steps are products of matrices that take about as long as a copy from pinned memory. Milliseconds by CUDA events,
    each the median of five epochs of 20 batches of 19 MB.
    """
    ordinary = [torch.rand(shape) for _ in range(4)] * (count // 4)
    pinned = [batch.pin_memory() for batch in ordinary[:4]] * (count // 4)
    weights = torch.rand(width, width, device="cuda", dtype=torch.half)
    side = torch.cuda.Stream()  # one for all epochs: each stream keeps memory of its own

    def only_copies():
        for _ in copied(pinned):
            pass

    ms_of_copy = epoch_ms(only_copies) / count
    ms_of_product = milliseconds(lambda: weights @ weights)
    products = max(1, round(ms_of_copy / ms_of_product))  # in a step

    def epoch(batches):
        for _ in batches:
            for _ in range(products):
                weights @ weights

    loops = {
        "steps alone": lambda: epoch(range(count)),
        "copies alone": only_copies,
        "ordinary memory": lambda: epoch(copied(ordinary)),
        "pinned memory": lambda: epoch(copied(pinned)),
        "ordinary memory, side stream": lambda: epoch(prefetched(ordinary, side)),
        "pinned memory, side stream": lambda: epoch(prefetched(pinned, side)),
    }
    # Does the memory of a batch stay its own until the step has read it? This step copies what it reads.
    as_read = [batch.clone() for batch in prefetched(pinned, side)]
    damaged = 0
    for sent, read in zip(pinned, as_read, strict=True):
        damaged += not torch.equal(sent, read.cpu())
    ms_a_step = {name: epoch_ms(loop) / count for name, loop in loops.items()}
    return {**ms_a_step, "batches": count, "damaged": damaged}


def epoch_ms(epoch):
    def whole():
        epoch()
        torch.cuda.synchronize()  # no epoch begins while copies of the one before are queued

    return milliseconds(whole, repeats=5, warm_up=1)


@overlap.draws
def overlap_drawn(result):
    loops = {name: ms for name, ms in result.items() if name not in ("batches", "damaged")}
    figure, ax = plt.subplots(figsize=(8, 2.6))
    bars = ax.barh(list(loops), list(loops.values()))
    ax.bar_label(bars, fmt="%.2f", padding=3)
    longest = max(loops.values())
    ax.set(title="A step with a copy, measured on a GPU", xlabel="ms a step", xlim=(0, 1.15 * longest))
    ax.invert_yaxis()
    labels = [f"{name}: {ms:.2f}" for name, ms in loops.items()]
    figure.set_label("Milliseconds a step. " + "; ".join(labels))


@overlap.tells
def overlap_in_words(result):
    same_stream = result["pinned memory"]
    side_stream = result["pinned memory, side stream"]
    step = result["steps alone"]
    copy = result["copies alone"]
    gain = same_stream / side_stream
    at_best = (step + copy) / max(step, copy)
    return (
        f"With pinned memory, the side stream makes the loop **{gain:.2f} times** as fast: "
        f"{same_stream:.2f} ms a step without it, {side_stream:.2f} ms with it. "
        f"A step alone takes {step:.2f} ms and a copy {copy:.2f} ms. "
        f"If the shorter one were hidden, the loop would be {at_best:.2f} times as fast. "
        f"From ordinary memory, `.to()` itself waits for the copy: {result['ordinary memory']:.2f} ms a step, "
        f"and {result['ordinary memory, side stream']:.2f} ms with the side stream. "
        f"(Each loop goes round four batches. The record above copies one batch again and again.) "
        f"Of {result['batches']} batches that came by the side stream, "
        f"{result['damaged']} had other values than those that were sent."
    )


def photo_loader(workers, pin, batch, count, size, pixels):
    """A DataLoader of `count` batches of photos: the same JPEG file, decoded and made smaller each time."""
    picture = Image.radial_gradient("L").resize(size).convert("RGB")
    file = io.BytesIO()
    picture.save(file, "JPEG")

    def decoded(numbers):
        photos = []
        for _ in numbers:
            photo = Image.open(io.BytesIO(file.getvalue()))
            photos.append(photo.resize((pixels, pixels)))
        return torch.from_numpy(np.stack(photos))  # 8 bits a number: the GPU converts them

    start_method = "fork" if workers else None  # DataLoader refuses one where it has no workers to start
    return DataLoader(range(batch * count), batch_size=batch, collate_fn=decoded, num_workers=workers,
                      pin_memory=pin, multiprocessing_context=start_method)


def training_step(channels):
    """A function that trains a network on a batch of such photos on the GPU."""
    layers = [nn.Conv2d(3, channels, 3), nn.ReLU()]
    for _ in range(7):
        layers += nn.Conv2d(channels, channels, 3), nn.ReLU()
    layers += nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(photos):
        optimizer.zero_grad()
        model(photos.movedim(3, 1) / 255).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()  # as a loop does that prints its loss

    return step


@experiment(gpus=1, seconds=11, wanted=1, small={"counts": (0, 1), "channels": 1, "batch": 2, "batches": 1,
                                                 "size": (64, 48), "pixels": 32})
def starving(counts=(0, 2, 4, 8, 16), channels=64, batch=32, batches=16, size=(500, 375), pixels=128):
    """What share of its time does a GPU wait for photos, and how many workers end that?

    Workers decode JPEG files of 500 × 375 pixels; the GPU trains eight convolutions on batches of 32. The clock
    starts when all workers have delivered, and runs for 16 batches or more. Without pinning, and with it.
    """
    step = training_step(channels)
    step(torch.zeros(batch, pixels, pixels, 3, dtype=torch.uint8, device="cuda"))  # the slow first one
    result = {"cores": len(os.sched_getaffinity(0))}
    for kind, pin in (("ordinary", False), ("pinned", True)):
        result[kind] = {}
        for workers in counts:
            turns = max(batches, 2 * workers)
            # More batches than the loop takes: a worker that had nothing left to do would leave its core to others.
            enough = turns + 4 * workers + 1
            loader = photo_loader(workers, pin, batch, enough, size, pixels)
            result[kind][workers] = attempt(waiting, loader, step, turns)
    return result


def waiting(loader, step, turns):
    """The share of a loop's time in which it waits for a batch, and the loop's milliseconds a batch."""
    batches = iter(loader)

    def turn():
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked
        step(batch.to("cuda", non_blocking=True))
        return waited

    for _ in range(max(1, loader.num_workers)):
        turn()
    began = time.perf_counter()
    waited = sum(turn() for _ in range(turns))
    took = time.perf_counter() - began
    return {"waiting": waited / took, "ms": 1000 * took / turns}


def measured(rows):
    """{workers: row} without what the machine refused."""
    return {int(workers): row for workers, row in rows.items() if "refused" not in row}


@starving.draws
def starving_drawn(result):
    figure, ax = plt.subplots(figsize=(7, 2.8))
    points = []
    for kind, look in (("ordinary", "o-"), ("pinned", "s--")):
        rows = measured(result[kind])
        percents = [100 * row["waiting"] for row in rows.values()]
        ax.plot(list(rows), percents, look, label=f"{kind} memory")
        for workers, row in rows.items():
            points.append(f"{kind} memory, {workers} workers: {row['waiting']:.0%}")
    ax.set(title="How long a GPU waits for photos", xlabel="num_workers", ylabel="% of the time", ylim=(0, 100))
    ax.legend()
    figure.set_label("The share of the time in which the GPU waits: " + "; ".join(points))


@starving.tells
def starving_in_words(result):
    ordinary = measured(result["ordinary"])
    pinned = measured(result["pinned"])
    alone = ordinary[0]
    load = alone["ms"] * alone["waiting"]
    step = alone["ms"] - load
    in_both = sorted(ordinary.keys() & pinned.keys())
    with_workers = [f"{row['waiting']:.0%} with {workers}" for workers, row in ordinary.items() if workers]
    needed = [math.ceil(row["waiting"] / (1 - row["waiting"])) for row in (alone, pinned[0])]
    words = (
        f"Without workers the GPU waits for **{alone['waiting']:.0%}** of the time, "
        f"because a batch takes {load:.1f} ms to load and a step takes {step:.1f} ms. "
        f"With workers it waits for {', '.join(with_workers)}; no other numbers were tried. "
        f"Loading divided by step, rounded up, is {needed[0]}, and {needed[1]} in a second run, with pinned memory; "
        f"this machine has {result['cores']} cores."
    )
    for workers in in_both[-2:]:
        words += (
            f" With {workers} workers, the loop takes {ordinary[workers]['ms']:.1f} ms a batch from ordinary memory, "
            f"and {pinned[workers]['ms']:.1f} ms from pinned memory."
        )
    for refusal in sorted(refusals(result)):
        words += f" This machine refused some settings: `{refusal}`."
    return words


def refusals(result):
    """What the machine said when it refused, each sentence once."""
    rows = [*result["ordinary"].values(), *result["pinned"].values()]
    return {row["refused"] for row in rows if "refused" in row}
