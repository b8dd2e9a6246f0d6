"""What the lesson about processes shows from a machine with GPUs."""

import subprocess
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp

from helpers.experiments import experiment


@experiment(gpus=1, seconds=10)
def fork_after_cuda():
    """What a forked and a spawned child say when their parent has used CUDA."""
    script = Path(__file__).with_name("fork_after_cuda.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@experiment(gpus=1, seconds=10)
def cuda_tensor_in_a_queue():
    """A CUDA tensor of 4 MB in a queue: bytes sent, whose memory is written, what share_memory_() moves."""
    from multiprocessing.reduction import ForkingPickler

    tensor = torch.zeros(1_000_000, device="cuda")
    place = tensor.data_ptr()
    tensor.share_memory_()
    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=_add_one, args=(queue, done))
    child.start()
    queue.put(tensor)
    arrived = done.wait(60)
    child.join(10)
    return {"bytes sent": len(ForkingPickler.dumps(tensor)), "arrived": arrived,
            "after the receiver's += 1 the sender sees": tensor[0].item(),
            "share_memory_() moved it": tensor.data_ptr() != place}


def _add_one(queue, done):
    tensor = queue.get()
    tensor += 1
    torch.cuda.synchronize()
    del tensor  # the receiver lets go of it before the sender does
    done.set()
