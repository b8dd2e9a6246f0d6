"""DataLoader's workers, forked: they start in milliseconds."""

import multiprocessing
import sys
import warnings

import torch


def allow_quick_workers():
    """Let DataLoader fork its workers: quick, and safe in a rank in which nothing has computed yet."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores
    if sys.platform == "linux":
        multiprocessing.set_start_method("fork", force=True)
