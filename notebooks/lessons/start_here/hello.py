"""A whole parallel program. Run it: launch("hello.py", nprocs=2), or torchrun --nproc-per-node=2 hello.py."""

import os

print("The script begins.")
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"Hello! I am rank {rank} of {world_size}.")
