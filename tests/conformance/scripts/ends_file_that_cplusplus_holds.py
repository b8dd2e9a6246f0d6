"""A file that a hook of DDP writes: DDP's C++ holds the hook, and never lets go of it."""
# differs: never-let-go
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def reduce_and_log(state, bucket):
    log.write(f"{bucket.buffer().numel()} gradients\n")
    return allreduce_hook(state, bucket)


dist.init_process_group("gloo")
log = open(f"log-{dist.get_rank()}", "w")
ddp = DistributedDataParallel(torch.nn.Linear(2, 1))
ddp.register_comm_hook(None, reduce_and_log)
ddp(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
