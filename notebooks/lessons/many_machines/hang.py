"""Four ranks that hang: one does not come to a collective. Each writes what its flight recorder holds.

    TORCH_FR_BUFFER_SIZE=100 torchrun … hang.py FOLDER
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

PATIENCE = 1  # seconds without progress; by default gloo waits half an hour, NCCL's watchdog ten minutes


def read_batch(step):
    if step == 3 and dist.get_rank() == 2:
        time.sleep(3600)  # a disk that does not answer
    return torch.full((1000,), float(step))


def write_down(folder):
    dump = json.loads(c10d._dump_fr_trace_json())
    file = Path(folder, f"rank-{dist.get_rank()}")
    file.write_text(json.dumps({"now": time.time_ns(), **dump}))
    file.rename(file.with_suffix(".json"))  # whole at once
    while len(list(Path(folder).glob("rank-*.json"))) < dist.get_world_size():
        time.sleep(0.05)  # who ends first has torchrun end all others
    os._exit(1)


def main(folder):
    dist.init_process_group("gloo")
    for step in range(6):
        timer = threading.Timer(PATIENCE, write_down, [folder])
        timer.start()
        gradient = read_batch(step)
        dist.all_reduce(gradient)
        dist.broadcast(gradient, src=0)
        timer.cancel()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
