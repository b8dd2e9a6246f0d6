"""A rank that comes late is waited for, at the first meeting and at the second one."""
import os
import time
from pathlib import Path

import torch.distributed as dist

rank = int(os.environ["RANK"])
for turn, late in enumerate((0, 1)):
    if rank == late:
        time.sleep(0.2)
    meeting = Path(f"meeting-{turn}")
    dist.init_process_group("gloo", init_method=f"file://{meeting.resolve()}", rank=rank, world_size=2)
    dist.barrier()
    print("met, rank", late, "was late")
    time.sleep(0.1)
    dist.destroy_process_group()
    if rank == 0:
        time.sleep(0.1)
        meeting.unlink(missing_ok=True)
