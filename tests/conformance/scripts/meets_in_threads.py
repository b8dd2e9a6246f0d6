"""Threads of a rank use groups of their own at the same time."""
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
groups = [dist.new_group() for _ in range(3)]


def reduce(number):
    total = torch.tensor(number + dist.get_rank())
    dist.all_reduce(total, group=groups[number])
    print(f"{number} {total.item()}\n", end="")  # in one write


threads = [threading.Thread(target=reduce, args=(number,)) for number in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
dist.destroy_process_group()
