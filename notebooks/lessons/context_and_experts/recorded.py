"""What lesson `context_and_experts` shows from machines with GPUs: long sequences, on one and cut on two."""

import os

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import scaled_dot_product_attention

from helpers.experiments import experiment
from helpers.models import attention_by_hand

HEADS, WIDTH = 16, 128


def cut(q, k, v, is_causal):
    """Attention of q, k and v, [heads, this rank's tokens, width] each: two ranks trade tokens for heads."""
    own = all_to_all(torch.stack([q, k, v], dim=1), split=0, join=2)
    out = scaled_dot_product_attention(*own.unbind(1), is_causal=is_causal)
    return all_to_all(out, split=1, join=0)


def all_to_all(x, split, join):
    """Send a part of dimension `split` to each rank; join what comes along dimension `join`."""
    parts = torch.cat(x.unsqueeze(0).chunk(dist.get_world_size(), dim=split + 1)).contiguous()
    received = all_to_all_single(torch.empty_like(parts), parts)
    return torch.cat(received.unbind(0), dim=join)


def measured(way, tokens):
    """Milliseconds (mean of 5) of forward and backward, and peak MiB, of causal attention in bfloat16."""
    from torch.utils.benchmark import Timer  # here, because it warns where it finds no GPU

    torch.manual_seed(0)
    qkv = torch.randn(3, HEADS, tokens, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    slope = torch.randn_like(qkv[0])

    def step():
        qkv.grad = None
        way(*qkv, is_causal=True).backward(slope)

    torch.cuda.reset_peak_memory_stats()
    try:
        seconds = Timer("step()", globals={"step": step}).timeit(5).mean  # as often in every rank
    except torch.OutOfMemoryError:
        return "out of memory"
    return {"ms": round(1000 * seconds, 2), "peak MiB": torch.cuda.max_memory_allocated() // 2**20}


@experiment(gpus=1, seconds=10)
def attention():
    """Causal attention, 16 heads of 128, forward and backward in bfloat16: all scores in memory, or fused."""
    return {f"{tokens:,} tokens, {name}": measured(way, tokens) for tokens in (1024, 4096, 16384, 65536)
            for name, way in (("all scores", attention_by_hand), ("fused", scaled_dot_product_attention))}


@experiment(gpus=2, seconds=10)
def attention_on_two():
    """Fused causal attention over 65,536 tokens: on one GPU, and cut on two by Ulysses."""
    from helpers import launch  # here, because it starts the fork server

    one = measured(scaled_dot_product_attention, 65536)
    return {"one GPU": one, "two GPUs": launch(_rank, nprocs=2, gpus=2, args=(32768,), show=False).results[0]}


def _rank(tokens):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    found = measured(cut, tokens)
    dist.barrier()
    dist.destroy_process_group()
    return found
