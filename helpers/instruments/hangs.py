"""A hang on purpose, one rank asking for other collectives than three; and what their flight recorders hold of it."""

import itertools
import os
import time

#: Collectives by the letters of a program.
_COLLECTIVES = {"r": lambda dist, x, **how: dist.all_reduce(x, **how), "b": lambda dist, x, **how: dist.barrier(**how),
          "g": lambda dist, x, **how: dist.all_gather([x.clone() for _ in range(4)], x, **how)}


def dumps_of(culprit, its, others):
    """What flight recorders hold of a real run that hangs. All four ranks call it; nobody waits for what never ends.

    Args:
        culprit: The rank that asks for the collectives `its`; all others ask for `others`.
        its, others: Each collective by its initial: all_reduce, barrier, all_gather.

    Returns:
        By rank, the recorder's entries: at most eight, the oldest first.
    """
    import torch
    import torch.distributed as dist

    from helpers.instruments.collectives import recorded

    if not dist.is_initialized():
        os.environ["TORCH_FR_BUFFER_SIZE"] = "8"
        dist.init_process_group("gloo")
    group, vain = dist.new_group(), parted(its, others)
    for number, letter in enumerate(its if dist.get_rank() == culprit else others, start=1):
        work = _COLLECTIVES[letter](dist, torch.ones(3), group=group, async_op=True)
        if number < vain:
            work.wait()
    while True:
        mine = [entry for entry in recorded() if entry["process_group"][0] == group.group_name]
        if all(entry["retired"] for entry in mine if entry["collective_seq_id"] < vain):
            break
        time.sleep(0.001)  # `wait` returns a little before the recorder knows
    dumps = [None] * dist.get_world_size()
    dist.all_gather_object(dumps, mine)
    return dumps


def parted(its, others):
    """The number of the first collective, from 1, that is not the same in both."""
    return next(number for number, (one, other) in enumerate(itertools.zip_longest(its, others), 1) if one != other)
