"""Backends are chosen by device, and a group can be made and named by hand."""
import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo", group_name="")
group = dist.new_group([0, 1], backend="gloo", group_desc="mine")
total = torch.ones(1)
dist.all_reduce(total, group=group)
print(total.item(), dist.get_backend_config(), group.group_desc, dist.group.WORLD is not group, group.name())
dist.destroy_process_group(group)
dist.barrier()
dist.destroy_process_group()
