"""Objects are gathered, broadcast and scattered."""
from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class Result:
    rank: int


dist.init_process_group("gloo")
rank = dist.get_rank()
gathered = [None, None] if rank == 0 else None
dist.gather_object(Result(rank), gathered)
said, part = [Result(5) if rank == 0 else None], [None]
dist.broadcast_object_list(said)
dist.scatter_object_list(part, [Result(7), Result(8)] if rank == 0 else None)
print(gathered, said, part)
dist.destroy_process_group()
