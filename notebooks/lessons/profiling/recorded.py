"""What profiling shows from a machine with a GPU."""

import time

import torch
import torch.distributed as dist
from torch import nn

from helpers.experiments import experiment


@experiment(gpus=1, seconds=10)
def asynchronous():
    """Milliseconds until a call returns and until it is done: ten 4096×4096 products; `wait()` of NCCL's all-reduce."""

    def clocked(call):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        returned = time.perf_counter() - began
        torch.cuda.synchronize()
        return {"returned": round(1000 * returned, 2), "done": round(1000 * (time.perf_counter() - began), 2)}

    def products():
        for _ in range(10):
            big @ big

    def reduce_and_wait():
        products()
        dist.all_reduce(big, async_op=True).wait()

    big = torch.randn(4096, 4096, device="cuda")  # zeros are multiplied faster
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1,
                            device_id=torch.device("cuda", 0))
    reduce_and_wait()  # warm up: kernels, NCCL's communicator
    found = {"products": clocked(products),
             "products, an all-reduce, and its wait()": clocked(reduce_and_wait)}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    products()
    end.record()
    end.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return found | {"products, by CUDA events": round(begin.elapsed_time(end), 2)}


@experiment(gpus=1, seconds=10)
def gpu_step():
    """Calls, self CPU and self device ms of ten steps of a 3-layer network, 2048 wide, batch 4096: CPU and CUDA."""
    from torch.profiler import ProfilerActivity, profile

    layers = [layer for _ in range(3) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model, batch = nn.Sequential(*layers).cuda(), torch.rand(4096, 2048, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as prof:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    rows = sorted(prof.key_averages(), key=lambda row: -row.self_device_time_total)[:8]
    # Numbered, because long names of kernels can begin alike.
    return {f"{number}. {row.key[:60]}": {"calls": row.count,
                                          "self CPU ms": round(row.self_cpu_time_total / 1000, 2),
                                          "self device ms": round(row.self_device_time_total / 1000, 2)}
            for number, row in enumerate(rows, start=1)}


@experiment(gpus=1, seconds=10)
def memory_snapshot():
    """MiB of the largest allocations, by function, while all distances of 2,048 rows of 64 numbers are computed."""

    def distances(rows):
        differences = rows[:, None, :] - rows[None, :, :]
        return differences.square().sum(-1).sqrt()

    rows = torch.randn(2048, 64, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        distances(rows)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    taken = sorted((entry for entry in trace if entry["action"] == "alloc"), key=lambda entry: -entry["size"])
    return {f"{number}. in {one['frames'][0]['name'] if one['frames'] else 'no Python'}": one["size"] // 2**20
            for number, one in enumerate(taken[:4], start=1)}
