"""DDP broadcasts rank 0's weights and averages the gradients."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1, bias=False)
mine = model.weight.clone()
ddp = DistributedDataParallel(model)
ddp(torch.full((1, 4), dist.get_rank() + 1.0)).sum().backward()
weights, firsts = [None, None], [None, None]
dist.all_gather_object(weights, model.weight.tolist())
dist.all_gather_object(firsts, mine.tolist())
print("fresh weights", "are equal" if firsts[0] == firsts[1] else "differ")
print("DDP's weights", "are equal" if weights[0] == weights[1] else "differ", model.weight.grad.tolist())
dist.destroy_process_group()
