"""torchrun's own store answers at MASTER_PORT, and TORCHELASTIC_USE_AGENT_STORE says so; launch has no such store."""
# differs: agent-store
# nprocs: 1
import datetime
import os

import torch.distributed as dist

print(os.environ["TORCHELASTIC_USE_AGENT_STORE"])
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where C++ says it at length
try:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                          timeout=datetime.timedelta(seconds=0.5))
    store.set("key", "value")
    print(store.get("key"))
except dist.DistError as error:
    print(type(error).__name__)
