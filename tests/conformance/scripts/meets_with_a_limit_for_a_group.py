"""A collective of a group with a time limit, in which a rank is missing, ends in an error after that time."""
import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group(timeout=datetime.timedelta(seconds=0.4))
if dist.get_rank() == 0:
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        print(type(error).__name__, 0.3 < time.monotonic() - began < 5)
    open("over", "w").close()
while not __import__("os").path.exists("over"):
    time.sleep(0.05)
print("the end")
