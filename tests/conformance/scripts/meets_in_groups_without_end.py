"""Groups that are made and destroyed in turn leave no descriptors and no threads."""
import os

import torch
import torch.distributed as dist


def held():
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


dist.init_process_group("gloo")
before = held()
for _ in range(30):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    del group
print(held() < before + 20)
dist.destroy_process_group()
