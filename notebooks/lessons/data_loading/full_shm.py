"""What does a DataLoader say when /dev/shm is full? Here it has 64 MB, as in a container. Linux only.

    launch("full_shm.py", nprocs=1)
"""

import re
import shutil
import subprocess
import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

# What it said where it was allowed to mount a file system, for where it is not.
SEEN = """not allowed here; elsewhere it printed:
the loader stacks samples: RuntimeError: unable to allocate shared memory(shm) for file </torch_…>: \
No space left on device (28)
the dataset returns batches: RuntimeError: DataLoader timed out after 3 seconds
a worker printed: RuntimeError: unable to allocate shared memory(shm) for file </torch_…>: \
No space left on device (28)
"""


class Images(Dataset):
    def __init__(self, *shape):
        self.shape = shape

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.zeros(self.shape)


def load():
    how = {"num_workers": 4, "timeout": 3, "multiprocessing_context": "fork"}
    loaders = {"the loader stacks samples": DataLoader(Images(3, 224, 224), batch_size=64, **how),
               "the dataset returns batches": DataLoader(Images(64, 3, 224, 224), batch_size=None, **how)}
    for what, loader in loaders.items():
        try:
            for _ in loader:
                time.sleep(0.1)
        except RuntimeError as error:
            last = str(error).strip().splitlines()[-1].removeprefix("RuntimeError: ")
            print(f"{what}: RuntimeError: {last}", flush=True)


def in_a_small_shm():
    """Run this script again, in a place where /dev/shm has 64 MB; return what it printed."""
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    command += [sys.executable, __file__, "load"]
    done = subprocess.run(command, capture_output=True, text=True) if shutil.which("unshare") else None
    if not done or not done.stdout:
        return SEEN
    workers = set(re.findall("^RuntimeError: .*shm.*", without_numbers(done.stderr), re.MULTILINE))
    return without_numbers(done.stdout) + "".join(f"a worker printed: {line}\n" for line in workers)


def without_numbers(text):
    return re.sub(r"\d+_\d+_\d+", "…", text)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.argv[1:] == ["load"]:
        load()
    else:
        print(in_a_small_shm(), end="")
