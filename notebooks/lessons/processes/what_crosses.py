"""Tensors of several kinds on their way through a Queue: which arrive?

    launch("what_crosses.py", nprocs=1)
"""

import sys
import warnings

import torch
import torch.multiprocessing as mp
from torch import nn


def kinds():
    """One small tensor of each kind."""
    weights = torch.ones(3, requires_grad=True)
    return {
        "dense": torch.ones(2, 3),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "Parameter": nn.Parameter(torch.ones(3)),
        "leaf with a gradient": weights,
        "sparse COO": torch.eye(3).to_sparse(),
        "sparse CSR": torch.eye(3).to_sparse_csr(),
        "result of a computation": weights * 2,
        "the same, detached": (weights * 2).detach(),
    }


def child(here, there):
    """Say what arrives, until None does."""
    while (sent := here.get()) is not None:
        name, tensor = sent
        layout, dtype = str(tensor.layout).removeprefix("torch."), str(tensor.dtype).removeprefix("torch.")
        there.put((name, f"arrives: {type(tensor).__name__}, {layout}, {dtype}, requires_grad={tensor.requires_grad}"))
    there.put(None)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Sparse")  # torch calls them beta each time one is made
    # Nothing has computed in this process yet, so that forking it is safe, and quick.
    context = mp.get_context("fork" if sys.platform == "linux" else "spawn")
    here, there = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(here, there))
    process.start()
    sent, arrived = kinds(), {}
    for item in [*sent.items(), None]:
        here.put(item)
    while (answer := there.get(timeout=60)) is not None:
        arrived[answer[0]] = answer[1]
    for name in sent:
        print(f"{name:24}", arrived.get(name, "never arrives"))
    process.join(10)
