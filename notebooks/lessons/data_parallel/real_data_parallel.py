"""What torch's own nn.DataParallel does here: with two GPUs it splits each batch.

    launch("real_data_parallel.py", nprocs=1), or python real_data_parallel.py
"""

import copy
import warnings

import torch
from torch import nn


class Net(nn.Module):
    """Returns its output, and how many samples it got. Gathered, these numbers are a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x, scalar=False):
        output = self.layers(x)
        if scalar:
            return output.square().mean()
        return output, torch.tensor([len(x)], device=x.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    alone = Net().double().to(device)
    model = nn.DataParallel(copy.deepcopy(alone))
    batch = torch.rand(5, 64, dtype=torch.double, device=device)

    output, sizes = model(batch)
    print("devices:", model.device_ids or "none, it just calls the module")
    print("batch sizes that forward saw:", sizes.tolist())
    output.square().mean().backward()
    output, _ = alone(batch)
    output.square().mean().backward()
    apart = 0.0
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        apart = max(apart, (p.grad - q.grad).abs().max().item())
    print(f"largest difference of the gradients: {apart:.0e}")
    print("first name in its state dict:", next(iter(model.state_dict())))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loss = model(batch, True)
    print("shape of a scalar loss:", list(loss.shape))
    warning = warned[0].message if warned else "nothing"
    print("torch warns:", warning)
