"""Is pinned memory worth it? Copies to the GPU from ordinary and from pinned memory. Needs a GPU.

    launch("pin_memory.py", nprocs=1, gpus=1)
"""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers import report


def milliseconds(work, repeat=20):
    """The median time of `work`, the GPU's part included."""
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[repeat // 2]


def epoch_ms(pin):
    """One epoch in which a step on the GPU can hide the copy of the next batch."""
    images = TensorDataset(torch.rand(256, 3, 224, 224))
    loader = DataLoader(images, batch_size=32, num_workers=2, persistent_workers=True, pin_memory=pin,
                        multiprocessing_context="forkserver")
    weights = torch.rand(4096, 4096, device="cuda")

    def epoch():
        for (batch,) in loader:
            batch.to("cuda", non_blocking=pin)
            for _ in range(10):
                weights @ weights

    epoch()  # starts the workers
    return milliseconds(epoch, repeat=3)


if __name__ == "__main__":
    ordinary = torch.rand(64, 3, 224, 224)
    pinned = ordinary.pin_memory()
    report(what="copy from ordinary memory", ms=milliseconds(lambda: ordinary.to("cuda")))
    report(what="copy from pinned memory", ms=milliseconds(lambda: pinned.to("cuda", non_blocking=True)))
    report(what="pin it yourself, then copy", ms=milliseconds(lambda: ordinary.pin_memory().to("cuda")))
    report(what="epoch, pin_memory=False", ms=epoch_ms(False))
    report(what="epoch, pin_memory=True", ms=epoch_ms(True))
