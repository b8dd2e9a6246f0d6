"""The hash of a text, and so the order of a set of texts, differs between ranks."""
# differs: hash
import torch.distributed as dist

dist.init_process_group("gloo")
both = [None, None]
dist.all_gather_object(both, [hash("a"), list({str(number) for number in range(100)})])
print("hashes", "differ" if both[0][0] != both[1][0] else "are equal")
print("orders", "differ" if both[0][1] != both[1][1] else "are equal")
dist.destroy_process_group()
