"""A wrong call of torch ends the rank, with torch's message."""
# nprocs: 1
import torch

torch.ones(2, 3) @ torch.ones(2, 3)
