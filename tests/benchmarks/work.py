"""What `launch.py` has the ranks do: a script for torchrun and launch, functions of a cell for launch.

Each function is complete in itself, so that its source can stand in a notebook cell as well, and leaves one
file per rank in `folder`, by which the benchmark sees that the ranks really worked together.
"""


def group(folder):
    """Form a group, all-reduce once, leave."""
    from pathlib import Path

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, total = dist.get_rank(), torch.tensor(dist.get_rank() + 1.0)
    dist.all_reduce(total)
    dist.destroy_process_group()
    Path(folder, str(rank)).write_text(str(total.item()))
    return total.item()


def ddp(folder):
    """Form a group and take one training step with DDP and AdamW."""
    from pathlib import Path

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    weight = model.module.weight.sum().item()
    dist.destroy_process_group()
    Path(folder, str(rank)).write_text(str(weight))
    return weight


def train(folder, seconds):
    """Train a small CNN with DDP for about `seconds`; write down the steps per second of the loop alone."""
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    convolutions = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()
    layers = *convolutions, nn.Flatten(), nn.Linear(16 * 24 * 24, 10)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(32, 1, 28, 28), torch.randint(10, (32,))

    def take_steps(number):
        for _ in range(number):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    take_steps(20)
    dist.barrier()
    began, steps, late = time.perf_counter(), 0, torch.zeros(())
    while not late:  # the ranks stop together: as soon as one of them finds that it is time
        take_steps(20)
        steps += 20
        late = torch.tensor(float(time.perf_counter() - began > float(seconds)))
        dist.all_reduce(late)
    speed = steps / (time.perf_counter() - began)
    dist.destroy_process_group()
    Path(folder, str(rank)).write_text(str(speed))


if __name__ == "__main__":
    import sys

    globals()[sys.argv[1]](*sys.argv[2:])
