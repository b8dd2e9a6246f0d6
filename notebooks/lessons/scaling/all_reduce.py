"""Time all_reduce of several sizes, between ranks 0 and 1, then between all ranks. Rank 0 prints the times.

    torchrun … all_reduce.py 4 1024 2048        # sizes in KiB
"""

import json
import sys
import time

import torch
import torch.distributed as dist

REPEATS = 5


def measured(kib, group):
    """Seconds of the quickest all_reduce, and core-seconds that all ranks of the group together spent on it."""
    x, seconds, busy = torch.zeros(kib * 256), [], torch.empty(REPEATS)
    dist.all_reduce(x, group=group)  # warm up: connect the ranks, use up what a cable lets through at once
    for i in range(REPEATS):
        start, computed = time.perf_counter(), time.process_time()
        dist.all_reduce(x, group=group)
        seconds.append(time.perf_counter() - start)
        busy[i] = time.process_time() - computed
    dist.all_reduce(busy, group=group)
    return min(zip(seconds, busy.tolist(), strict=True))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    pair = dist.new_group([0, 1])
    for ranks, group in (2, pair), (dist.get_world_size(), dist.group.WORLD):
        for kib in map(int, sys.argv[1:]) if dist.get_rank() < ranks else ():
            seconds, busy = measured(kib, group)
            if dist.get_rank() == 0:
                row = {"ranks": ranks, "bytes": 1024 * kib, "seconds": seconds, "core_seconds": busy}
                print(json.dumps(row), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
