"""What DDP shows from a machine with two GPUs."""

import json
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.experiments import experiment


@experiment(gpus=2, seconds=10)
def overlap():
    """Milliseconds of backward on two GPUs over NCCL, gradients averaged by hand or by DDP: events, median of 20."""
    return _in_ranks(_overlap)


@experiment(gpus=2, seconds=10)
def three_ways():
    """Seconds for 10,000 samples on one GPU, on two by nn.DataParallel, on two by DDP: the best of 20 steps."""
    return {f"batch {batch}": {
        "one GPU": _seconds(lambda net: net, batch, batch, "cuda:0"),
        "DataParallel": _seconds(lambda net: nn.DataParallel(net, device_ids=[0, 1]), batch, batch, "cuda:0"),
        "DDP": _in_ranks(_ddp, batch)} for batch in (128, 8192)}


def _in_ranks(work, *args):
    """What rank 0 of two returns from `work(rank, device, *args)`."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder, work, args), nprocs=2)
        return json.loads(Path(folder, "result").read_text())


def _rank(rank, folder, work, args):
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = dist.FileStore(str(Path(folder, "store")), 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, device_id=device)
    result = work(rank, device, *args)
    if rank == 0:
        Path(folder, "result").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def _overlap(rank, device):
    x = torch.randn(4096, 4096, device=device)

    def backward_ms(by_hand=False, **options):
        model, times = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).to(device), []
        model = model if by_hand else DistributedDataParallel(model, device_ids=[rank], **options)
        for _ in range(23):  # three to warm up
            model.zero_grad()
            loss = model(x).square().mean()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            begin.record()
            loss.backward()
            for parameter in model.parameters() if by_hand else ():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return round(sorted(times[3:])[10], 2)

    return {"by hand, after backward": backward_ms(by_hand=True),
            "DDP, one bucket": backward_ms(bucket_cap_mb=10_000),
            "DDP, buckets as it makes them": backward_ms()}


def _ddp(rank, device, batch):
    return _seconds(lambda net: DistributedDataParallel(net, device_ids=[rank]), batch // 2, batch, device)


def _seconds(wrap, size, batch, device):
    """For 10,000 samples; `size` is this process's part of the batch."""
    model, times = wrap(nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).to(device)), []
    x, optimizer = torch.randn(size, 2048, device=device), torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(20):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return round(10_000 / batch * min(times), 4)
