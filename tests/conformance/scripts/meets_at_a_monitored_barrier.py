"""A monitored barrier lets all through, and names the rank that does not come."""
# nprocs: 3
import datetime
import re

import torch.distributed as dist

dist.init_process_group("gloo")
dist.monitored_barrier()
print("through")
if dist.get_rank() < 2:
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.4))
    except RuntimeError as error:
        print(type(error).__name__, re.findall(r"[Rr]ank 2|ranks? \[2\]", str(error)))
