"""What does a DataLoader say when /dev/shm is full? Here it has 64 MB, as in a container. Linux only.

    launch("full_shm.py", nprocs=1)
"""

import re
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

#: What it said where it was allowed to mount a file system, for where it is not.
SEEN = """not allowed here; elsewhere torch 2.14 printed:
the loader stacks samples: RuntimeError: unable to allocate shared memory(shm) for file </torch_…>: \
No space left on device (28)
the dataset returns batches: RuntimeError: DataLoader timed out after 5 seconds
  a worker printed: RuntimeError: unable to allocate shared memory(shm) for file </torch_…>: \
No space left on device (28)"""


class Images(Dataset):
    def __init__(self, *shape):
        self.shape = shape

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.zeros(self.shape)


def load(who):
    how = {"num_workers": 4, "timeout": 5, "multiprocessing_context": "fork"}
    if who == "the loader stacks samples":
        loader = DataLoader(Images(3, 224, 224), batch_size=64, **how)
    else:
        loader = DataLoader(Images(64, 3, 224, 224), batch_size=None, **how)
    try:
        for _ in loader:
            time.sleep(0.1)
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1].removeprefix("RuntimeError: ")
        print(f"{who}: RuntimeError: {last}")


def in_a_small_shm(who):
    """Run this script again, in a place where /dev/shm has 64 MB; return what it and its workers printed."""
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    call = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", sys.executable, __file__, who]
    done = subprocess.run(call, capture_output=True, text=True)
    printed = done.stdout.strip()
    if not printed:  # nothing ran, because this system does not let us mount
        return ""
    worker = re.search("^RuntimeError: .*shm.*", done.stderr, re.MULTILINE)
    if worker:
        printed += f"\n  a worker printed: {worker.group()}"
    return re.sub(r"\d+_\d+_\d+", "…", printed)  # numbers that differ in each run


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.argv[1:]:
        load(sys.argv[1])
    else:
        ways = "the loader stacks samples", "the dataset returns batches"
        printed = [""]
        if shutil.which("unshare"):
            with ThreadPoolExecutor(2) as side_by_side:
                printed = list(side_by_side.map(in_a_small_shm, ways))
        if all(printed):
            print("\n".join(printed))
        else:
            print(SEEN)
