"""What data loading shows from a machine with GPUs."""

from helpers.records import experiment


@experiment(gpus=1)
def copies():
    """A 19 MB batch copied to the GPU: [ms until `.to()` returns, ms until it is there], median of 10."""
    from helpers.workers.data_loading import pin_memory

    return pin_memory.copies()


@experiment(gpus=1)
def overlap():
    """Milliseconds per step, by loop; steps as long as a copy; CUDA events, median of 3 epochs of 12 steps."""
    from helpers.workers.data_loading import pin_memory

    return pin_memory.overlap()
