"""A rank forms groups with processes that it starts, twice, each time at a port of its own."""
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def child(index, port):
    os.environ |= {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_PORT": str(port),
                   "TORCHELASTIC_USE_AGENT_STORE": "False"}
    dist.init_process_group("gloo")
    total = torch.tensor(index + 1)
    dist.all_reduce(total)
    sys.stdout.write(f"child {index} has {total.item()}\n")  # at once: the children share it
    dist.destroy_process_group()


for _ in range(2):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.start_processes(child, args=(port,), nprocs=2, start_method="fork")
