"""The ranks form their group from the environment, and the group reduces."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(total.item(), dist.get_rank(), dist.get_world_size(), dist.get_backend(), dist.get_node_local_rank())
dist.barrier()
dist.destroy_process_group()
print(dist.is_initialized())
