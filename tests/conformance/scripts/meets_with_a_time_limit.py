"""Waiting for a key that never comes ends in DistStoreError after the given time."""
# slow
import datetime
import time

import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
began = time.monotonic()
for wait in (lambda: store.wait(["never"], datetime.timedelta(seconds=0.2)), lambda: store.get("never")):
    store.set_timeout(datetime.timedelta(seconds=0.2))
    try:
        wait()
    except dist.DistError as error:
        print(type(error).__name__)
print(0.3 < time.monotonic() - began < 5)
store.set_timeout(datetime.timedelta(seconds=60))
dist.barrier()
dist.destroy_process_group()
