"""Each collective of gloo gives what it promises."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine, both = torch.tensor([rank + 1.0]), torch.zeros(2)
dist.all_gather_into_tensor(both, mine)
rows = [torch.zeros(1), torch.zeros(1)]
dist.all_gather(rows, mine)
part = torch.zeros(1)
dist.reduce_scatter_tensor(part, both.clone())
exchanged = torch.zeros(2)
dist.all_to_all_single(exchanged, torch.tensor([10.0, 20.0]) + rank)
most = mine.clone()
dist.reduce(most, dst=0, op=dist.ReduceOp.MAX)
scattered = torch.zeros(1)
dist.scatter(scattered, [torch.ones(1), torch.ones(1) * 2] if rank == 0 else None)
print(both.tolist(), rows, part.item(), exchanged.tolist())
print(most.item() if rank == 0 else "", scattered.item())
dist.destroy_process_group()
