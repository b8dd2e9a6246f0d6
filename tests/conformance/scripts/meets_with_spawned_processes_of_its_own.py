"""A single rank starts processes by mp.spawn, as the tutorials do, and these form a group."""
# slow
# nprocs: 1
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def child(rank, size, port):
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print("child", rank, "of", dist.get_world_size(), "has", total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(child, args=(2, port), nprocs=2)
