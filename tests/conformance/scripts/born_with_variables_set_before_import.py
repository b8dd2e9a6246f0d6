"""Variables that the script sets before it imports torch have their effect."""
# differs: already-imported
import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
import torch
import torch.distributed as dist

print(dist.get_debug_level(), torch.get_num_threads())
