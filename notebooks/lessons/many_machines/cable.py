"""Time a training step over what lies between the ranks, four ways. Prints JSON: first, and for each speed.

    torchrun … cable.py FOLDER 50 200        before each speed it waits until FOLDER/speed is there
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4


def milliseconds(step, repeats=2):
    """The best of `repeats` times of the slowest rank."""
    step()  # DDP makes its buckets anew after the first
    times = torch.empty(repeats)
    for i in range(repeats):
        dist.barrier()
        began = time.perf_counter()
        step()
        times[i] = time.perf_counter() - began
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return 1000 * times.min().item()


def main(folder, *speeds):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = []
    for _ in range(5):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    net = nn.Sequential(*layers)
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.25)  # about a layer in each bucket
    half = DistributedDataParallel(net, bucket_cap_mb=0.25)
    half.register_comm_hook(None, fp16_compress_hook)  # gradients travel as float16
    x = torch.randn(1024, 256)

    def backward(model, parts=1):
        (model(x).square().mean() / parts).backward()

    def compute(model=net):
        model.zero_grad()
        backward(model)

    def by_hand():
        compute()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def accumulated():
        ddp.zero_grad()
        with ddp.no_sync():
            for _ in range(MICRO_BATCHES - 1):
                backward(ddp, MICRO_BATCHES)
        backward(ddp, MICRO_BATCHES)

    def alone():
        with ddp.no_sync():
            compute(ddp)

    for _ in range(10):
        alone()  # the first steps are slower
    known = {"parameters": sum(p.numel() for p in net.parameters()), "alone": milliseconds(alone)}
    if dist.get_rank() == 0:
        print(json.dumps(known))
    for speed in speeds:
        while not Path(folder, speed).exists():
            time.sleep(0.01)
        row = {"speed": speed, **known, "alone": milliseconds(alone), "by hand": milliseconds(by_hand),
               "DDP": milliseconds(lambda: compute(ddp)), "fp16": milliseconds(lambda: compute(half)),
               "accumulated": milliseconds(accumulated) / MICRO_BATCHES}
        if dist.get_rank() == 0:
            print(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
