"""Pinned memory and a side stream: who waits for a copy to the GPU? Needs a GPU.

    launch("pin_memory.py", nprocs=1, gpus=1)
"""

import statistics
import time

import torch

from helpers import report


def prefetched(batches):
    """Each batch on the GPU; the next one is copied on a stream of its own, beside the step."""
    side, batches = torch.cuda.Stream(), iter(batches)

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


def copy_ms(batch, pin=False):
    """(until `.to` returns, until the batch is there), in milliseconds; the median of 10."""
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        there = (batch.pin_memory() if pin else batch).to("cuda", non_blocking=True)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        times.append(((returned - began) * 1000, (time.perf_counter() - began) * 1000))
        del there
    return [round(statistics.median(column), 3) for column in zip(*times[2:], strict=True)]


def gpu_ms(work):
    """The time of `work` on the GPU, between two events: median of 3, after a first."""
    times = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return round(statistics.median(times[1:]), 3)


def all_right():
    """Whether each batch arrives with the values that it was sent with."""
    batches = [torch.rand(64, 1000).pin_memory() for _ in range(50)]
    sums = [batch.sum() for batch in prefetched(batches)]  # a step, on the GPU
    return all(torch.isclose(there.cpu(), here.sum()) for there, here in zip(sums, batches, strict=True))


def batches_of(count, pin):
    batches = [torch.rand(32, 3, 224, 224) for _ in range(4)]
    return [batch.pin_memory() if pin else batch for batch in batches] * (count // 4)


def copies():
    """A 19 MB batch copied to the GPU: [ms until `.to()` returns, ms until it is there], median of 10."""
    (ordinary, *_), (pinned, *_) = batches_of(4, False), batches_of(4, True)
    return {"ordinary memory": copy_ms(ordinary), "pinned memory": copy_ms(pinned),
            "pinned in the loop, then copied": copy_ms(ordinary, pin=True)}


def overlap(count=12):
    """Milliseconds per step, by loop: steps as long as a copy, CUDA events, median of 3 epochs of 12."""
    ordinary, pinned = batches_of(count, False), batches_of(count, True)
    weights = torch.rand(4096, 4096, device="cuda", dtype=torch.half)
    copy = gpu_ms(lambda: [None for _ in copied(pinned)]) / count
    repeats = max(1, round(copy / (gpu_ms(lambda: [weights @ weights for _ in range(10)]) / 10)))

    def epoch(batches):
        for _ in batches:
            for _ in range(repeats):
                weights @ weights

    loops = {"steps alone": lambda: epoch(range(count)),
             "copies alone": lambda: [None for _ in copied(pinned)],
             "ordinary memory": lambda: epoch(copied(ordinary)),
             "pinned memory": lambda: epoch(copied(pinned)),
             "ordinary memory, side stream": lambda: epoch(prefetched(ordinary)),
             "pinned memory, side stream": lambda: epoch(prefetched(pinned))}
    return {name: round(gpu_ms(loop) / count, 3) for name, loop in loops.items()}


if __name__ == "__main__":
    for how, (returned, there) in copies().items():
        report(what=f"copy: {how}", returned=returned, there=there)
    for loop, ms in overlap().items():
        report(what=loop, step=ms)
    report(what="all batches arrived whole", right=all_right())
