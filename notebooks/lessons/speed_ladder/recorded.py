"""What lesson `speed_ladder` shows from a machine with GPUs: a GPT's training, one rung at a time."""

import itertools
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from helpers import models
from helpers.experiments import experiment

#: A GPT of 0.8 billion parameters, as `helpers.models.GPT` builds it; the texts in a batch, below and above.
SHAPE = {"width": 2048, "layers": 12, "heads": 16, "vocabulary": 50304, "length": 1024}
TEXTS, MORE_TEXTS = 4, 16
#: {rung: what it switches on}; each keeps what those before it have switched on.
RUNGS = {
    "float32, attention by hand": {},
    "TF32": {"tf32": True},
    "bfloat16": {"bf16": True},
    "fused attention": {"fused_attention": True},
    "fused optimizer": {"fused_optimizer": True},
    "batch of 16 texts": {"texts": MORE_TEXTS},
    "compile": {"compile": True},
}


def batches(texts, length, vocabulary):
    """Random texts from the CPU's memory, without end."""
    host = torch.randint(vocabulary, (8, texts, length + 1))
    return (one.cuda() for one in itertools.cycle(host))


def flops_of_token(width, layers, vocabulary, length, **_):
    """Floating-point operations of training, for each token. Source: PaLM, arXiv 2204.02311, appendix B.

    Six for each weight of a matrix, twelve of width² in a block; looking up an embedding multiplies nothing.
    """
    return 6 * (12 * layers * width**2 + vocabulary * width) + 12 * layers * width * length


def matmul_rate(dtype, size=8192, times=10):
    """Floating-point operations a second of a square matrix product."""
    one, other = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    best = 0
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            one @ other
        torch.cuda.synchronize()
        best = max(best, 2 * size**3 * times / (time.perf_counter() - began))
    return best


def tokens_a_second(shape, texts=TEXTS, tf32=False, bf16=False, fused_attention=False, fused_optimizer=False,
                    compile=False, ranks=1, warmup=3, steps=8):
    """Tokens a second of all ranks, and the loss after the last step, of training a GPT of `shape`."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    library = models.scaled_dot_product_attention
    models.scaled_dot_product_attention = library if fused_attention else models.attention_by_hand
    try:
        with torch.device("cuda"):  # its weights are drawn there, in no time
            net = models.GPT(**shape)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=fused_optimizer or None)
        model = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()]) if ranks > 1 else net
        model = torch.compile(model) if compile else model
        given = batches(texts, shape["length"], shape["vocabulary"])
        for step in range(warmup + steps):
            if step == warmup:
                if ranks > 1:
                    dist.barrier()
                torch.cuda.synchronize()
                began = time.perf_counter()
            tokens = next(given)
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return ranks * texts * shape["length"] * steps / (time.perf_counter() - began), loss.item()
    finally:
        models.scaled_dot_product_attention = library


def ladder(shape, **how):
    """By rung: tokens a second, times the first's, share of the ceiling, loss: the better of up and down."""
    ceiling = matmul_rate(torch.bfloat16, **({"size": 256, "times": 1} if shape is not SHAPE else {}))
    work = flops_of_token(**shape)
    switched, settings, found = {}, {}, {}
    for name, change in RUNGS.items():
        settings[name] = switched = switched | change
    for name in [*RUNGS, *reversed(RUNGS)]:
        torch.cuda.empty_cache()
        speed, loss = tokens_a_second(shape, **settings[name], **how)
        if speed > found.get(name, (0, 0))[0]:
            found[name] = speed, loss
    first = found[next(iter(RUNGS))][0]
    rows = {name: {"tokens a second": round(speed), "times as fast": round(speed / first, 2),
                   "of the matmul ceiling": round(speed * work / ceiling, 3), "loss": round(loss, 3)}
            for name, (speed, loss) in found.items()}
    return rows | {"matmul ceiling, bfloat16": {"TFLOP/s": round(ceiling / 1e12, 1)}}


@experiment(gpus=1, seconds=10)
def gpu_ladder():
    """Tokens a second and share of the measured matmul rate: a GPT's training, seven rungs, in both orders."""
    return ladder(SHAPE)


def _ranks(shape, how):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    speed, _ = tokens_a_second(shape, ranks=dist.get_world_size(), **how)
    dist.barrier()
    dist.destroy_process_group()
    return speed


@experiment(gpus=2, seconds=10)
def gpu_ladder_ddp():
    """Tokens a second of the GPU ladder's top rung, on one GPU and, with DDP, on two."""
    from helpers import launch  # here, because it starts the fork server

    how = {name: value for change in RUNGS.values() for name, value in change.items()}
    one, two = (min(launch(_ranks, nprocs=gpus, args=(SHAPE, how), gpus=gpus, show=False).results)
                for gpus in (1, 2))
    return {"one GPU": round(one), "two GPUs": round(two), "times as fast": round(two / one, 2)}
