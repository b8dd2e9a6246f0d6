"""The state of an optimizer is spread over the ranks."""
import warnings

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam)
ddp(torch.ones(1, 4)).sum().backward()
optimizer.step()
print(len(optimizer.optim.state), len(list(ddp.parameters())))
dist.destroy_process_group()
