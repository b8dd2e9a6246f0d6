"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "two_make_all_reduce": ("Which two, one after the other, leave in every rank what `all_reduce` leaves?", {
        "reduce_scatter, then all_gather": "First each rank gets one piece of the sum, then all ranks "
                                           "exchange their pieces.",
        "scatter, then gather": "Neither of them adds anything up.",
        "broadcast, then reduce": "After broadcast all ranks hold rank 0's numbers, and those are added up.",
    }),
    "three_ways_apart": (
        "Two ranks by hand, two with DDP, and one process with whole batches: how far apart are the "
        "weights?", {
            "equal, up to rounding": "The batches are the same, and the mean of two half-batches' mean "
                                     "gradients is the mean gradient of the batch. So the steps are the "
                                     "same.",
            "three different models": "The mean of two half-batches' mean gradients is the mean gradient of "
                                      "the batch.",
            "DDP's is different, because it overlaps": "DDP sends earlier, but it sends the same gradients.",
        }),
    "all_reduces_without_sync": (
        "Four parts. `no_sync()` is around the first three backwards only; all forwards are outside. How "
        "many all-reduces?", {
            "four": "DDP decides in `forward` whether the next backward all-reduces, and each forward was "
                    "outside.",
            "one": "This would be true if DDP decided in backward.",
            "none": "At least the last part is outside `no_sync()`.",
        }),
}
