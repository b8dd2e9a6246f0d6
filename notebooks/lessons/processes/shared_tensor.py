"""A child writes into a list, a tensor and a shared tensor of its parent: which change for the parent?

    launch("shared_tensor.py", nprocs=1, args=["fork"]), or "spawn"
"""

import sys

import torch
import torch.multiprocessing as mp


def write(numbers, tensor, shared):
    """Write a 7 into the first place of each."""
    for place in (numbers, tensor, shared):
        place[0] = 7


def main(method):
    """Start a child by this method, and look at the three things when it has ended."""
    numbers = [0, 0]
    tensor = torch.zeros(2)
    shared = torch.zeros(2).share_memory_()
    child = mp.get_context(method).Process(target=write, args=(numbers, tensor, shared))
    child.start()
    child.join(60)
    print("list:          ", numbers)
    print("tensor:        ", tensor.tolist())
    print("shared tensor: ", shared.tolist())


if __name__ == "__main__":
    main(sys.argv[1])  # "fork" is safe here: nothing has computed yet
