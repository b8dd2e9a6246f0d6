"""A profiler that nobody has stopped records until the end."""
# differs: recording
# nprocs: 1
import torch
from torch.profiler import ProfilerActivity, profile

profiler = profile(activities=[ProfilerActivity.CPU], with_stack=True)
profiler.start()
model = torch.nn.Linear(2, 1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
print("trained")
