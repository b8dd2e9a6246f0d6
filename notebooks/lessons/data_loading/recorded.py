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
            return None if batch is None else batch.to("cuda", non_blocking=True)

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
    return {"MB": ordinary.nbytes / 1e6,
            "ordinary memory": copy_ms(lambda: ordinary),
            "pinned memory": copy_ms(lambda: pinned),
            "pinned in the loop, then copied": copy_ms(ordinary.pin_memory)}


def copy_ms(batch):
    """[ms until `.to()` returns, ms until the batch is there]"""
    return returned_and_done(lambda: batch().to("cuda", non_blocking=True), repeats=10, warm_up=2)


@copies.tells
def copies_in_words(result):
    rows = {how: row for how, row in result.items() if how != "MB"}
    (_, slow), (returned, quick), (pinning, late) = rows.values()
    speeds = f"{result['MB'] / slow:.0f} GB/s from ordinary memory, {result['MB'] / quick:.0f} GB/s from pinned memory"
    table = "".join(f"\n| {how} | {first:.2f} ms | {second:.2f} ms |" for how, (first, second) in rows.items())
    return (f"From pinned memory, `.to()` returns after **{returned:.2f} ms**, and the batch of {result['MB']:.0f} MB "
            f"is on the GPU after {quick:.2f} ms. That makes {speeds}. If the loop pins the batch itself, pinning and "
            f"`.to()` keep Python for {pinning:.2f} ms, and the batch is on the GPU after {late:.2f} ms. That is "
            f"{late / quick:.1f} times as long as from memory that was pinned before, and {late / slow:.1f} times as "
            "long as from ordinary memory.\n\n"
            f"| | `.to()` returns after | the batch is there after |\n|---|---|---|{table}")


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
    copy = epoch_ms(lambda: [None for _ in copied(pinned)]) / count
    products = max(1, round(copy / milliseconds(lambda: weights @ weights)))

    def epoch(batches):
        for _ in batches:
            for _ in range(products):
                weights @ weights

    loops = {"steps alone": lambda: epoch(range(count)),
             "copies alone": lambda: [None for _ in copied(pinned)],
             "ordinary memory": lambda: epoch(copied(ordinary)),
             "pinned memory": lambda: epoch(copied(pinned)),
             "ordinary memory, side stream": lambda: epoch(prefetched(ordinary, side)),
             "pinned memory, side stream": lambda: epoch(prefetched(pinned, side))}
    arrived = [batch.clone() for batch in prefetched(pinned, side)]  # a step that reads the batch
    damaged = sum(not torch.equal(here, there.cpu()) for here, there in zip(pinned, arrived, strict=True))
    return {name: epoch_ms(loop) / count for name, loop in loops.items()} | {"batches": count, "damaged": damaged}


def epoch_ms(epoch):
    def whole():
        epoch()
        torch.cuda.synchronize()  # no epoch begins while copies of the one before are queued

    return milliseconds(whole, repeats=5, warm_up=1)


@overlap.draws
def overlap_drawn(result):
    loops = {name: ms for name, ms in result.items() if name not in ("batches", "damaged")}
    figure, ax = plt.subplots(figsize=(8, 2.6))
    ax.bar_label(ax.barh(list(loops), list(loops.values())), fmt="%.2f", padding=3)
    ax.set(title="A step with a copy, measured on a GPU", xlabel="ms a step", xlim=(0, 1.15 * max(loops.values())))
    ax.invert_yaxis()
    figure.set_label("Milliseconds a step. " + "; ".join(f"{name}: {ms:.2f}" for name, ms in loops.items()))


@overlap.tells
def overlap_in_words(result):
    one, side = (result[f"pinned memory{how}"] for how in ("", ", side stream"))
    step, copy = result["steps alone"], result["copies alone"]
    return (f"With pinned memory, the side stream makes the loop **{one / side:.2f} times** as fast: {one:.2f} ms a "
            f"step without it, {side:.2f} ms with it. A step alone takes {step:.2f} ms and a copy {copy:.2f} ms. If "
            f"the shorter one were hidden, the loop would be {(step + copy) / max(step, copy):.2f} times as fast. Of "
            f"{result['batches']} batches that came by the side stream, {result['damaged']} had other values than "
            "those that were sent.")


def photo_loader(workers, pin, batch, count, size, pixels):
    """A DataLoader of `count` batches of photos: the same JPEG file, decoded and made smaller each time."""
    picture = Image.radial_gradient("L").resize(size).convert("RGB")
    picture.save(file := io.BytesIO(), "JPEG")

    def decoded(numbers):
        photos = [Image.open(io.BytesIO(file.getvalue())).resize((pixels, pixels)) for _ in numbers]
        return torch.from_numpy(np.stack(photos))  # 8 bits a number: the GPU converts them

    return DataLoader(range(batch * count), batch_size=batch, collate_fn=decoded, num_workers=workers,
                      pin_memory=pin, multiprocessing_context="fork" if workers else None)


def training_step(channels):
    """A function that trains a network on a batch of such photos on the GPU."""
    layers = [nn.Conv2d(3, channels, 3), nn.ReLU()]
    for _ in range(7):
        layers += nn.Conv2d(channels, channels, 3), nn.ReLU()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).cuda()
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
    step, result = training_step(channels), {"cores": len(os.sched_getaffinity(0))}
    step(torch.zeros(batch, pixels, pixels, 3, dtype=torch.uint8, device="cuda"))  # the slow first one
    for pin in (False, True):
        result["pinned" if pin else "ordinary"] = rows = {}
        for workers in counts:
            turns = max(batches, 2 * workers)
            # More batches than the loop takes: a worker that had nothing left to do would leave its core to others.
            loader = photo_loader(workers, pin, batch, turns + 4 * workers + 1, size, pixels)
            rows[workers] = attempt(waiting, loader, step, turns)
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
    for kind, style in ("ordinary", "o-"), ("pinned", "s--"):
        rows = measured(result[kind])
        ax.plot(list(rows), [100 * row["waiting"] for row in rows.values()], style, label=f"{kind} memory")
    ax.set(title="How long a GPU waits for photos", xlabel="num_workers", ylabel="% of the time", ylim=(0, 100))
    ax.legend()
    figure.set_label("The share of the time in which the GPU waits: " + "; ".join(
        f"{kind} memory, {workers} workers: {row['waiting']:.0%}"
        for kind in ("ordinary", "pinned") for workers, row in measured(result[kind]).items()))


@starving.tells
def starving_in_words(result):
    rows = {kind: measured(result[kind]) for kind in ("ordinary", "pinned")}
    alone, most = rows["ordinary"][0], max(rows["ordinary"].keys() & rows["pinned"].keys())
    load, step = alone["ms"] * alone["waiting"], alone["ms"] * (1 - alone["waiting"])
    enough = next((n for n, row in rows["ordinary"].items() if row["waiting"] < 0.1), None)
    until = (f"With {enough} workers it waits for less than 10 %" if enough is not None else
             f"Even with {most} workers it waits for 10 % or more")
    one, two = (rows[kind][most]["ms"] for kind in rows)
    refused = {row["refused"] for kind in rows for row in result[kind].values() if "refused" in row}
    return (f"Without workers the GPU waits for **{alone['waiting']:.0%}** of the time, because a batch takes "
            f"{load:.1f} ms to load and a step takes {step:.1f} ms. {until}. Loading divided by step, rounded up, is "
            f"{math.ceil(load / step)}; this machine has {result['cores']} cores. With {most} workers, the loop takes "
            f"{one:.1f} ms a batch from ordinary memory, and {two:.1f} ms from pinned memory."
            + "".join(f" This machine refused some settings: `{words}`." for words in sorted(refused)))
