"""A single rank is a group, too."""
# nprocs: 1
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
total = torch.ones(2)
dist.all_reduce(total)
ddp = DistributedDataParallel(torch.nn.Linear(2, 1))
ddp(total).sum().backward()
print(total.tolist(), ddp.module.weight.grad.tolist())
dist.destroy_process_group()
