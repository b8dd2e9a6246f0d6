"""Ranks with unequal numbers of batches train together under join."""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Linear(1, 1))
steps = 0
with Join([ddp]):
    for _ in range(3 + dist.get_rank()):
        ddp(torch.ones(1, 1)).sum().backward()
        steps += 1
print(steps)
dist.destroy_process_group()
