"""Mixed precision under DDP: which dtype goes where, and what one rank's infinity does.

    launch("mixed_ddp.py", nprocs=2)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from helpers.data import Digits


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    dtypes_sent = set()

    def note_what_is_sent(state, bucket):  # then do what DDP does without a hook
        dtypes_sent.add(str(bucket.buffer().dtype))
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, note_what_is_sent)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")  # bf16 needs none: it is here to be watched
    images, labels = Digits(train=True).tensors()
    images, labels = images[rank::world_size], labels[rank::world_size]

    for step in range(4):
        batch = slice(32 * step, 32 * step + 32)
        before = net[1].weight.detach().clone()
        scale = scaler.get_scale()
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            output = model(images[batch])
            loss = nn.functional.cross_entropy(output, labels[batch])
        if step == 2 and rank == 1:
            loss = loss * float("inf")  # an accident, in one rank only
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        finite = loss.isfinite().item()
        moved = not torch.equal(before, net[1].weight)
        print(f"step {step}: loss finite: {finite!s:5}  weights moved: {moved!s:5}  "
              f"scale {scale:.0f} -> {scaler.get_scale():.0f}")

    print("output", output.dtype, " weights", net[1].weight.dtype, " sent", *dtypes_sent)
    weights = nn.utils.parameters_to_vector(net.parameters()).detach()
    by_rank = [torch.zeros_like(weights) for _ in range(world_size)]
    dist.all_gather(by_rank, weights)
    equal = all(torch.equal(by_rank[0], other) for other in by_rank)
    print(f"weights equal in all ranks: {equal}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
