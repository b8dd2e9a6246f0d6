"""A main function whose return value is the exit code."""
import os
import sys

import torch.distributed as dist


def main():
    dist.init_process_group("gloo", init_method="env://", world_size=int(os.environ["WORLD_SIZE"]),
                            rank=int(os.environ["RANK"]))
    print(dist.get_rank(), dist.get_world_size())
    return 0


if __name__ == "__main__":
    sys.exit(main())
