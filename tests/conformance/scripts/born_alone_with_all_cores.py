"""A single rank may use all cores."""
# nprocs: 1
import os

import torch

print(torch.get_num_threads() == len(os.sched_getaffinity(0)))
print(os.environ["WORLD_SIZE"], "OMP_NUM_THREADS" in os.environ)
