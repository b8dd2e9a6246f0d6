"""Every rank says who it is. Run it: launch("hello.py", nprocs=2), or torchrun --nproc-per-node=2 hello.py."""

import os

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"Hello! I am rank {rank} of {world_size}, in a process of my own.")
