"""A collective with a rank that has ended fails."""
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    time.sleep(0.2)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print("failed:", type(error).__name__)
else:
    os._exit(0)
