"""A process that belongs to no job, and has reached a store.

    python stranger.py ADDRESS PORT
"""

import sys

import torch.distributed as dist

_, address, port = sys.argv
store = dist.TCPStore(address, int(port), is_master=False)
before = store.num_keys()
store.set("left by", "a stranger")
print(f"keys of others: {before}; now there: {store.get('left by').decode()!r}")
