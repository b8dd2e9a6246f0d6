"""The same seed in all ranks makes them draw the same, and ranks draw what a process without ranks draws."""
import random

import numpy as np
import torch

torch.manual_seed(1)
np.random.seed(1)
random.seed(1)
print([round(x, 4) for x in torch.rand(3).tolist()], torch.nn.Linear(1, 1).weight.item() < 0)
print(np.random.randint(1000, size=3), random.sample(range(1000), 3))
