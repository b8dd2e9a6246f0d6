"""Train a GPT of which each rank holds a shard (FSDP2), on GPUs or on the CPU. It saves after every step, and resumes.

    torchrun --nproc-per-node=2 train_fsdp.py checkpoints
"""

import argparse
import os
import signal
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

from helpers import report
from helpers.models import GPT

PARTS = 2  # of a step's batch, one after the other
TEXT = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)  # it learns Python


def build(mesh, options):
    with torch.device("meta"):  # shapes without memory: no rank ever holds the whole model
        model = GPT(width=options.width)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mesh": mesh, "mp_policy": policy}
    for block in model.blocks:
        if options.compile:
            block.compile(backend=options.compile)  # first compile, then shard
        fully_shard(block, reshard_after_forward=True, **how)
    fully_shard(model, reshard_after_forward=False, **how)  # backward begins with its parameters
    model.to_empty(device=mesh.device_type)  # memory for this rank's shards
    # DTensor gives each GPU its part of one stream of random numbers. CPUs need a seed each.
    torch.manual_seed(dist.get_rank() if mesh.device_type == "cpu" else 0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def batch(step, part, device):
    """16 pieces of 65 bytes. They depend on step, part and rank only, so a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1_000_000 * dist.get_rank() + 1000 * step + part)
    starts = torch.randint(len(TEXT) - 65, (16, 1), generator=generator)
    return TEXT[starts + torch.arange(65)].long().to(device)


def save(model, optimizer, folder, step):
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder / "unfinished")
    if dist.get_rank() == 0:
        os.replace(folder / "unfinished", folder / f"step-{step}")  # this name says that all is there


def resume(model, optimizer, folder):
    """Continue from the newest checkpoint, if there is one. Returns the step that comes next."""
    newest = max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)
    if newest:
        weights, states = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder / f"step-{newest}")  # into its tensors
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    return newest


def train(model, optimizer, first, device, options):
    for step in range(first, options.steps):
        if step == options.die_in_step:
            os.kill(os.getpid(), signal.SIGKILL)  # as if its machine were gone
        for part in range(PARTS):
            model.set_requires_gradient_sync(part == PARTS - 1)  # gradients are reduced once a step
            tokens = batch(step, part, device)
            scores = model(tokens[:, :-1]).float()
            loss = cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / PARTS).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of all ranks' shards together
        optimizer.step()
        optimizer.zero_grad()
        report(step=step, loss=loss.item(), norm=norm.full_tensor().item())
        save(model, optimizer, options.folder, step + 1)


def main(options):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as the next line wants it on GPUs
    torch.use_deterministic_algorithms(True)  # so that a resumed run ends with the same bits
    # On the CPU each rank is to draw its own shards' numbers, and nobody changes what the model returns.
    warnings.filterwarnings("ignore", "DTensor random operators|FSDP2-wrapped module")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # a GPU for each rank
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    model, optimizer = build(init_device_mesh(device.type, (dist.get_world_size(),)), options)
    first = resume(model, optimizer, options.folder)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} rank(s) over {dist.get_backend()}, on {device.type}, from step {first}")
    train(model, optimizer, first, device, options)
    dist.barrier()  # nobody leaves while others still talk
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="of the checkpoints")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile each block")
    parser.add_argument("--die-in-step", type=int, help="it kills itself there")
    main(parser.parse_args())
