"""Two of three ranks form a group, and then all three meet for RPC."""
# nprocs: 3
import os

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])
if rank < 2:
    dist.init_process_group("gloo", rank=rank, world_size=2)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print("two of three:", total.item())
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
print("all:", rpc.rpc_sync(f"worker{(rank + 1) % 3}", os.getenv, args=("RANK",)))
rpc.shutdown()
