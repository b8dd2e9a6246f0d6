"""A mesh of two dimensions has a group for each row and each column, and tensors lie spread over it."""
# nprocs: 4
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
tensor = distribute_tensor(torch.arange(8.0).view(2, 4), mesh, [Shard(0), Shard(1)])
print(mesh.get_coordinate(), mesh["tp"].get_local_rank(), tensor.to_local().tolist())
print(tensor.redistribute(mesh, [Replicate(), Replicate()]).to_local().sum().item())
dist.destroy_process_group()
