"""A rank that raises is the cause, and not the rank that waits for it in a collective."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("boom")
try:
    dist.all_reduce(torch.ones(1))
finally:
    import time

    time.sleep(20)
