"""Train on the digits with DistributedDataParallel."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from helpers import report
from helpers.data import Digits

if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:  # fewer GPUs than ranks
    device = torch.device("cpu")
    dist.init_process_group("gloo")
images, labels = Digits().tensors()
data = TensorDataset(images[:1024], labels[:1024])
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(device)
model = DistributedDataParallel(model)
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, batch_size=64 // dist.get_world_size(), sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if dist.get_rank() == 0:
    report(weights=model.module[1].weight.tolist())  # or save model.module.state_dict()
dist.destroy_process_group()
