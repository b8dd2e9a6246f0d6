"""A rank that is in a group starts processes: a loader's workers while it trains."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
loader = DataLoader(torch.arange(8.0).view(8, 1), batch_size=2, num_workers=2, persistent_workers=True)
for _ in range(2):
    for batch in loader:
        ddp(batch).sum().backward()
print(ddp.module.weight.grad.item())
dist.destroy_process_group()
