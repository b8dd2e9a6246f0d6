"""DDP and a reduction that is under way may outlive the group."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
ddp(torch.ones(1, 2)).sum().backward()
work = dist.all_reduce(torch.ones(3), async_op=True)
work.wait()
dist.destroy_process_group()
print(ddp.module.weight.grad.shape, work.is_completed())
