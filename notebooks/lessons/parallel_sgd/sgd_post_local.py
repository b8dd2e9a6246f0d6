"""Torch's own local SGD: gradients are averaged at first, later the weights, every four steps.

    launch("sgd_post_local.py", nprocs=2)
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel


def with_post_local(model, warm_up=4):
    """The model in DDP, and an optimizer that averages weights after so many steps."""
    alone, _ = dist.new_subgroups(group_size=1)  # after the warm-up, each rank averages gradients with itself only
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(PostLocalSGDState(None, alone, start_localSGD_iter=warm_up), post_localSGD_hook)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return ddp, PostLocalSGDOptimizer(sgd, PeriodicModelAverager(period=4, warmup_steps=warm_up))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ddp, optimizer = with_post_local(torch.nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(dist.get_rank())  # other samples in each rank
    apart = []
    for step in range(1, 13):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()
        weights = [torch.zeros_like(ddp.module.weight) for _ in range(dist.get_world_size())]
        dist.all_gather(weights, ddp.module.weight.detach())
        if not torch.allclose(*weights):
            apart.append(step)
    if dist.get_rank() == 0:
        print("12 steps; the weights of the two ranks differ after steps", *apart)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
