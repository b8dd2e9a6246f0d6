import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
print("program of rank", dist.get_rank(), "of", dist.get_world_size())
dist.destroy_process_group()
