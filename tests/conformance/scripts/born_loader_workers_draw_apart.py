"""The workers of a DataLoader draw other values in each rank."""
import random

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Draws(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return random.random(), torch.rand(1).item(), torch.initial_seed()


dist.init_process_group("gloo")
loader = DataLoader(Draws(), num_workers=2, multiprocessing_context="fork")
mine = [[value.item() for value in batch] for batch in loader]
both = [None, None]
dist.all_gather_object(both, mine)
values = {value for rank in both for batch in rank for value in batch}
print(len(values), "different values of 12")
dist.destroy_process_group()
