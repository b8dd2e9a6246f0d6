"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "two_make_all_reduce": (
        "Which two, one after the other, leave in every rank what `all_reduce` leaves?", {
            "reduce_scatter, then all_gather": "Each rank sums up one piece, then all hand out their pieces.",
            "scatter, then gather": "Neither of them adds anything up.",
            "broadcast, then reduce": "All would hold rank 0's numbers before they are added up.",
        }),
    "three_ways_apart": (
        "Two ranks by hand, two with DDP, and one process with whole batches: how far apart are the weights?", {
            "equal, up to rounding":
                "Same batches, same gradients, same steps. Only who computes them differs.",
            "three different models":
                "The mean of two half-batches' mean gradients is the batch's mean gradient.",
            "DDP's is different, for it overlaps": "It sends earlier. What it sends is the same.",
        }),
    "all_reduces_without_sync": (
        "Four parts. `no_sync()` is around the first three backwards only; all forwards are outside. How "
        "many all-reduces?", {
            "four": "DDP looks in the forward, and each forward was outside of `no_sync`.",
            "one": "It would be, if DDP looked in backward.",
            "none": "The last part is outside `no_sync` in any case.",
        }),
}
