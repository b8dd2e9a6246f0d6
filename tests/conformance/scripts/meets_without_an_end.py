"""A script that never destroys its group ends in good order."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
print(total.tolist(), dist.is_initialized())
