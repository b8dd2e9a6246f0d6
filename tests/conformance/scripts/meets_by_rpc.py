"""A rank calls functions in another one."""
import os

import torch
import torch.distributed.rpc as rpc


def add(a, b):
    return a + b


rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    print(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1)).item())
    print(rpc.remote("worker1", add, args=("a", "b")).to_here())
    print(rpc.rpc_async("worker1", add, args=(1, 2)).wait())
rpc.shutdown()
