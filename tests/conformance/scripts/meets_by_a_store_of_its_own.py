"""The ranks form their group by a store that rank 0 opens at a port of its own choice."""
import os
import time
from pathlib import Path

import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    Path("unfinished").write_text(str(store.port))
    os.rename("unfinished", "port")
while not os.path.exists("port"):
    time.sleep(0.01)
if rank > 0:
    store = dist.TCPStore("127.0.0.1", int(Path("port").read_text()), size, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.barrier()
print("met", type(dist.PrefixStore("a", store)).__name__)
if rank == 0:
    os.remove("port")
dist.barrier()
dist.destroy_process_group()
