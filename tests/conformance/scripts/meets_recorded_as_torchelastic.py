"""torchelastic's variables and its decorator are there for the script."""
import os

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group()
    print(dist.is_torchelastic_launched(), os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
