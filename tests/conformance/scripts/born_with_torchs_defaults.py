"""Torch's global settings are those of its import."""
import torch
import torch.distributed as dist

print(torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled())
print(torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled())
print(torch.get_float32_matmul_precision(), torch.is_autocast_enabled())
print(dist.is_initialized(), dist.is_torchelastic_launched(), dist.get_debug_level(), dist.GroupMember.WORLD)
print(torch.multiprocessing.get_sharing_strategy(), torch.multiprocessing.get_start_method(allow_none=True))
print(torch.cuda.is_initialized(), torch.backends.cudnn.benchmark, torch.utils.data.get_worker_info())
