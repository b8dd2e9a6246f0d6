"""The ranks form their group at the address and port of the environment."""
import os

import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
dist.barrier()
print("met")
dist.destroy_process_group()
