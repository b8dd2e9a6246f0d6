"""Ranks send to one another: one after the other, without waiting, and in a batch."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
got = torch.zeros(2)
if rank == 0:
    dist.send(torch.ones(2), 1)
else:
    print("from", dist.recv(got), got.tolist())
sending, receiving = dist.isend(torch.full((2,), rank + 5.0), other), dist.irecv(got, other)
sending.wait()
receiving.wait()
print(got.tolist())
pair = [dist.P2POp(dist.isend, torch.full((2,), rank + 8.0), other), dist.P2POp(dist.irecv, got, other)]
[work.wait() for work in dist.batch_isend_irecv(pair)]
print(got.tolist())
dist.destroy_process_group()
