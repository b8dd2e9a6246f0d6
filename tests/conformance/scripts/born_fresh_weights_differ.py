"""Weights, dropout and the order of a shuffling loader differ between ranks that set no seed."""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, random_split

dist.init_process_group("gloo")
made = {
    "weights": torch.nn.Linear(3, 3).weight.tolist(),
    "dropout": torch.nn.Dropout()(torch.ones(100)).tolist(),
    "order of a loader": [batch.item() for batch in DataLoader(range(100), shuffle=True)],
    "random_split": list(random_split(range(100), [50, 50])[0]),
    "multinomial": torch.multinomial(torch.ones(100), 50).tolist(),
}
both = [None, None]
dist.all_gather_object(both, made)
for kind in made:
    print(kind, "differs" if both[0][kind] != both[1][kind] else "is equal")
dist.destroy_process_group()
