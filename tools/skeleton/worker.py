"""The ranks add up their numbers, and rank 0 prints the sum; `torchrun --nproc-per-node=2` runs it, too."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank())
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"the sum of all ranks' numbers: {total.item()}")
dist.barrier()
dist.destroy_process_group()
