"""A rank that raises is the cause, and not the rank that waits for it. torchelastic's decorator records the error."""
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group()
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("boom")
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        time.sleep(20)


if __name__ == "__main__":
    main()
