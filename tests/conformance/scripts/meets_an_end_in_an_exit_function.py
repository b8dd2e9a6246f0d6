"""A group that an exit function destroys is destroyed."""
import atexit

import torch.distributed as dist


@atexit.register
def leave():
    dist.barrier()
    dist.destroy_process_group()
    print("left", dist.is_initialized())


dist.init_process_group("gloo")
print("met")
