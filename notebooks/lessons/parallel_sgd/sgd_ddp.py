"""DistributedDataParallel: gradients are averaged in every step, while `backward` runs.

    launch("sgd_ddp.py", nprocs=4), or torchrun --nproc-per-node=4 sgd_ddp.py
"""

from torch.nn.parallel import DistributedDataParallel

from lessons.parallel_sgd.ranks import in_ranks, one_pass
from lessons.parallel_sgd.shards import options

if __name__ == "__main__":
    in_ranks(one_pass, wrap=DistributedDataParallel, **options(__doc__))
