"""Ranks save a checkpoint together and load it again."""
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
state = {"weights": torch.full((2,), 7.0), "step": 3}
dcp.save(state, checkpoint_id="checkpoint")
state["weights"].zero_()
dcp.load(state, checkpoint_id="checkpoint")
print(state["weights"].tolist())
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree("checkpoint")
dist.destroy_process_group()
