"""Time all_reduce of several sizes, between ranks 0 and 1, then between all ranks. Rank 0 prints the times.

    torchrun … all_reduce.py 4 1024 2048        # sizes in KiB
"""

import json
import sys
import time

import torch
import torch.distributed as dist

REPEATS = 15


def measured(kib, group):
    """Seconds of the quickest all_reduce, and core-seconds that all ranks of the group together spent on it."""
    x = torch.zeros(kib * 256)  # of 4 bytes each
    seconds = []
    core_seconds = torch.empty(REPEATS)
    dist.all_reduce(x, group=group)  # warm up: connect the ranks, use up what a cable lets through at once
    for i in range(REPEATS):
        start = time.perf_counter()
        start_on_core = time.process_time()
        dist.all_reduce(x, group=group)
        seconds.append(time.perf_counter() - start)
        core_seconds[i] = time.process_time() - start_on_core
    dist.all_reduce(core_seconds, group=group)
    return min(zip(seconds, core_seconds.tolist(), strict=True))


def measure_sizes(ranks, group):
    for argument in sys.argv[1:]:
        kib = int(argument)
        seconds, core_seconds = measured(kib, group)
        if dist.get_rank() == 0:
            row = {"ranks": ranks, "bytes": 1024 * kib, "seconds": seconds, "core_seconds": core_seconds}
            print(json.dumps(row), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    pair = dist.new_group([0, 1])
    for ranks, group in (2, pair), (dist.get_world_size(), dist.group.WORLD):
        if dist.get_rank() < ranks:
            measure_sizes(ranks, group)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
