"""Two workers load 100 batches, and all are kept. How many files does that leave open? Linux and macOS.

    launch("open_files.py", nprocs=1)
"""

import resource
import warnings

import psutil
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def keep_all(batches, copy):
    kept, before = [], psutil.Process().num_fds()
    try:
        for batch in batches:
            kept.append(batch.clone() if copy else batch)
        print(f"  all {len(kept)} are kept,", end=" ")
    except RuntimeError as error:
        print(f"  {str(error).partition('.')[0]};", end=" ")
    print(f"files that a kept batch holds open: {round((psutil.Process().num_fds() - before) / len(kept))}")


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # as `ulimit -n 64` does
    loader = DataLoader(torch.zeros(400, 4), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for how, copy in (("file_descriptor", False), ("file_descriptor", True), ("file_system", False)):
        mp.set_sharing_strategy(how)
        print(f"{how}, keep {'copies' if copy else 'the batches'}:")
        keep_all(loader, copy)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    main()
