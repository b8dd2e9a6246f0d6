"""The ranks form a group, leave it, and form another one at a port that rank 0 has chosen, three times."""
# (At the same port, torchrun fails now and then: its store still has the first group's addresses.)
import os
import socket

import torch
import torch.distributed as dist

for turn in range(3):
    dist.init_process_group("gloo", init_method="env://")
    total = torch.tensor(turn + dist.get_rank())
    dist.all_reduce(total)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = [listener.getsockname()[1]]
    dist.broadcast_object_list(port)
    print(turn, total.item())
    dist.destroy_process_group()
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port[0])}
