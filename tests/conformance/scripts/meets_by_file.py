"""The ranks form their group by a file, which is gone in the end, so that they can do so again."""
# twice
import os

import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=int(os.environ["RANK"]),
                        world_size=int(os.environ["WORLD_SIZE"]))
objects = [None, None]
dist.all_gather_object(objects, dist.get_rank())
print(objects)
dist.destroy_process_group()
