"""An exception in a DataLoader's worker reaches the rank, with the worker's traceback in its message."""
# nprocs: 1
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise OSError(f"no picture {index}")


next(iter(DataLoader(Broken(), num_workers=1)))
