"""Profile some steps: gradients averaged by hand after backward, by DDP during it.

    launch("ddp_trace.py", nprocs=2, args=["FOLDER"])

It leaves naive-0.json, naive-1.json, ddp-0.json … in FOLDER, one trace per rank.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def average_gradients(model):
    """One all-reduce for each parameter, after backward."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def record(model, after_backward, x, path):
    """Two steps to warm up, then two steps whose trace is written to `path`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=2, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(path),
    ) as prof:
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            after_backward(model)
            optimizer.step()
            prof.step()


def main(folder, width, layers, batch, bucket_mb):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the ranks share the cores
    rank = dist.get_rank()
    x = torch.randn(batch, width)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    dist.barrier()
    record(model, average_gradients, x, str(Path(folder, f"naive-{rank}.json")))
    model = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    dist.barrier()
    record(model, lambda _: None, x, str(Path(folder, f"ddp-{rank}.json")))
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128, help="in each rank")
    parser.add_argument("--bucket-mb", type=float, default=4)
    main(**vars(parser.parse_args()))
