"""torchrun's store has queues, lists its keys, and knows that a key to be deleted is not there."""
# differs: store-queues
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
for what in (lambda: store.queue_push("queue", "item"), lambda: store.queue_pop("queue"),
             lambda: any(b"key" in str(key).encode() for key in store.list_keys())):
    try:
        store.set("key", "value")
        print(what())
    except NotImplementedError as error:
        print(type(error).__name__)
print(store.delete_key("never"))
dist.barrier()
dist.destroy_process_group()
