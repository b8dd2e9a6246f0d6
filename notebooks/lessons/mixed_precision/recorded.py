"""What mixed precision shows from a machine with a GPU."""

from itertools import pairwise

import torch
from torch import nn

from helpers.experiments import experiment


def _milliseconds(work, repeats=20):
    """The median of CUDA events around `work`, after three calls without a clock."""
    for _ in range(3):
        work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return sorted(one.elapsed_time(two) for one, two in pairwise(events))[repeats // 2]


def _tflops(n, dtype):
    a = torch.rand(n, n, device="cuda", dtype=dtype)
    return round(2 * n**3 / _milliseconds(lambda: a @ a) / 1e9, 1)


@experiment(gpus=1, seconds=10)
def tensor_cores():
    """TFLOP/s of a 4096×4096 product in fp32, TF32, fp16 and bf16 on one GPU: CUDA events, median of 20."""
    found = {}
    for name, precision in (("fp32", "ieee"), ("tf32", "tf32")):
        torch.backends.cuda.matmul.fp32_precision = precision
        found[name] = _tflops(4096, torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "none"
    return found | {"fp16": _tflops(4096, torch.float16), "bf16": _tflops(4096, torch.bfloat16)}


@experiment(gpus=1, seconds=10)
def shapes():
    """TFLOP/s of n×n products in TF32 and bf16, n a multiple of 64, 8, 4, 2, 1: CUDA events, median of 20."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    found = {f"{n}×{n}": {"tf32": _tflops(n, torch.float32), "bf16": _tflops(n, torch.bfloat16)}
             for n in (4096, 4088, 4092, 4094, 4095)}
    torch.backends.cuda.matmul.fp32_precision = "none"
    return found


@experiment(gpus=1, seconds=10)
def training_step():
    """Milliseconds (median of 20) and peak MiB of a transformer's step in fp32, TF32, bf16, and scaled fp16.

    AdamW, 8 layers, 1024 wide, 8 times 512 tokens.
    """

    def measured(dtype=None, precision="ieee", scaled=False):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.fp32_precision = precision
        layers = [nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True) for _ in range(8)]
        model, tokens = nn.Sequential(*layers).cuda(), torch.rand(8, 512, 1024, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)

        def step():
            optimizer.zero_grad()
            with torch.amp.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = model(tokens).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        ms = _milliseconds(step)
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.backends.cuda.matmul.fp32_precision = "none"
        return {"ms": round(ms, 1), "peak MiB": torch.cuda.max_memory_allocated() // 2**20}

    return {"fp32": measured(), "tf32": measured(precision="tf32"), "bf16": measured(torch.bfloat16),
            "fp16, scaled": measured(torch.float16, scaled=True)}
