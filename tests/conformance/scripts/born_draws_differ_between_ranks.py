"""What a rank draws without a seed differs from what the other rank draws."""
import random
import secrets
import tempfile
import uuid

import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
draws = {
    "torch": torch.rand(1).item(), "torch's permutation": torch.randperm(1000).tolist(),
    "torch's seed": torch.initial_seed(), "a new generator's seed": torch.Generator().seed(),
    "numpy": np.random.rand(), "numpy's generator": np.random.default_rng().random(),
    "random": random.random(), "shuffle": random.sample(range(1000), 1000),
    "uuid": str(uuid.uuid4()), "secrets": secrets.token_hex(), "tempfile": tempfile.mktemp(),
}
both = [None, None]
dist.all_gather_object(both, draws)
for kind in draws:
    print(kind, "differs" if both[0][kind] != both[1][kind] else "is equal")
dist.destroy_process_group()
