"""A DistributedSampler gives each rank its share, in another order in each epoch."""
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
sampler = DistributedSampler(range(10))
loader = DataLoader(range(10), batch_size=5, sampler=sampler, num_workers=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print(epoch, [batch.tolist() for batch in loader])
dist.destroy_process_group()
