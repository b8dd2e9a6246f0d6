"""What torch's own nn.DataParallel does here: with two GPUs it splits each batch.

    launch("real_data_parallel.py", nprocs=1), or python real_data_parallel.py
"""

import copy
import time
import warnings

import torch
from torch import nn

from helpers import report


class Net(nn.Module):
    """Returns its output, and how many samples it got: gathered, that is a list."""

    def __init__(self, width=64):
        super().__init__()
        layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)
        self.layers = nn.Sequential(*layers)

    def forward(self, x, scalar=False):
        output = self.layers(x)
        if scalar:
            return output.square().mean()
        return output, torch.tensor([len(x)], device=x.device)


def step_ms(model, batch, repeat=20):
    """Milliseconds of a forward and a backward pass on GPUs, after three to warm up."""
    for step in range(repeat + 3):
        if step == 3:
            torch.cuda.synchronize()
            began = time.perf_counter()
        model(batch)[0].square().mean().backward()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeat * 1000


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    alone = Net().to(device)
    model = nn.DataParallel(copy.deepcopy(alone))
    batch = torch.rand(5, 64, device=device)

    output, sizes = model(batch)
    print("devices:", model.device_ids or "none, it just calls the module")
    print("batch sizes that forward saw:", sizes.tolist())
    output.square().mean().backward()
    alone(batch)[0].square().mean().backward()
    here, there = ([p.grad for p in net.parameters()] for net in (model, alone))
    close = (torch.allclose(p, q, atol=1e-6) for p, q in zip(here, there, strict=True))
    print("same gradient:", all(close))
    print("first name in its state dict:", next(iter(model.state_dict())))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        print("shape of a scalar loss:", list(model(batch, scalar=True).shape))
    print("torch warns:", said[0].message if said else "nothing")

    for width in (1024, 65536) if len(model.device_ids) > 1 else ():
        one, many = Net(width).to(device), nn.DataParallel(Net(width).to(device))
        batch = torch.rand(1024, 64, device=device)
        report(width=width, one_ms=step_ms(one, batch), all_ms=step_ms(many, batch))
