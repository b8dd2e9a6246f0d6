"""Locks and shared tensors leave nothing behind."""
import multiprocessing

import torch

lock, event, value = multiprocessing.Lock(), multiprocessing.Event(), multiprocessing.Value("i", 1)
tensor = torch.ones(1000).share_memory_()
lock.acquire()
print(tensor.is_shared(), value.value, event.is_set())
