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
    batches_kept = []
    before = psutil.Process().num_fds()
    try:
        for batch in batches:
            if copy:
                batch = batch.clone()
            batches_kept.append(batch)
        print(f"  all {len(batches_kept)} are kept,", end=" ")
    except RuntimeError as error:
        print(f"  {str(error).partition('.')[0]};", end=" ")
    files = psutil.Process().num_fds() - before
    print(f"files that a kept batch holds open: {round(files / len(batches_kept))}")


def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # as `ulimit -n 64` does
    loader = DataLoader(torch.zeros(400, 4), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for strategy, copy in (("file_descriptor", False), ("file_descriptor", True), ("file_system", False)):
        mp.set_sharing_strategy(strategy)
        what = "copies" if copy else "the batches"
        print(f"{strategy}, keep {what}:")
        keep_all(loader, copy)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    main()
