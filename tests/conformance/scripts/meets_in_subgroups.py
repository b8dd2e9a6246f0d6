"""Groups of some of the ranks work beside the group of all."""
# nprocs: 4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = torch.tensor(float(rank))
dist.all_reduce(mine, group=pairs[rank // 2])
halves, _ = dist.new_subgroups(2)
other = torch.tensor(float(rank))
dist.broadcast(other, src=dist.get_global_rank(halves, 1), group=halves)
print(mine.item(), other.item(), dist.get_group_rank(halves, rank), dist.get_process_group_ranks(halves))
print(dist.get_rank(pairs[0]), dist.get_world_size(pairs[1]))
dist.barrier()
dist.destroy_process_group()
