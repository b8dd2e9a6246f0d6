"""The group's store keeps what ranks write: set, get, add, compare, delete, wait."""
import datetime

import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
store.set(f"key-{dist.get_rank()}", f"of {dist.get_rank()}")
store.wait(["key-0", "key-1"], datetime.timedelta(seconds=10))
print([store.get(f"key-{rank}").decode() for rank in range(2)], store.check(["key-0"]), store.check(["none"]))
store.add("count", 2)
dist.barrier()
print(store.add("count", 0), store.compare_set("new", "", "first") in (b"first", "first"))
dist.barrier()
if dist.get_rank() == 0:
    print(store.delete_key("key-1"), store.num_keys() > 0)
dist.barrier()
print(store.check(["key-1"]), store.timeout > datetime.timedelta(minutes=1))
dist.barrier()
dist.destroy_process_group()
