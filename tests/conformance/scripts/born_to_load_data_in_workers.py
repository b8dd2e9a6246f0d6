"""A DataLoader has workers of each kind."""
# slow
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor(i * i)


if __name__ == "__main__":
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=context)
        print(context, sum(batch.sum().item() for batch in loader))
