"""RPC and a group of gloo live side by side."""
import os

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
total = torch.ones(1)
dist.all_reduce(total)
print(total.item(), rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(1), rank)).item())
rpc.shutdown()
dist.destroy_process_group()
