"""A device mesh and FSDP2 shard a model."""
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=mesh)
model(torch.ones(2, 8)).sum().backward()
print(mesh.size(), model.weight.to_local().shape)
torch.distributed.destroy_process_group()
