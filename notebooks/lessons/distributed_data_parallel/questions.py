"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "three_jobs": (
        "Rank 0 writes all ranks' outputs into a file; every rank needs the number of right answers in all ranks; "
        "rank 0 has read a batch, and each rank computes a part of it. Which collectives, if no rank shall "
        "get more than it needs?", {
            "gather, all_reduce, scatter": "Rank 0 alone gets everybody's outputs, every rank gets the sum, and each "
                                           "rank gets a piece of its own.",
            "all_gather, all_reduce, broadcast": "They would do, but every rank would get all outputs, and the whole "
                                                 "batch.",
            "gather, reduce, scatter": "After `reduce`, only rank 0 may use the sum, and here every rank needs it.",
        }),
    "two_make_all_reduce": ("Which two, one after the other, leave in every rank what `all_reduce` leaves?", {
        "reduce_scatter, then all_gather": "First each rank gets one piece of the sum, then all ranks "
                                           "exchange their pieces.",
        "scatter, then gather": "Neither of them adds anything up.",
        "broadcast, then reduce": "After broadcast all ranks hold rank 0's numbers, and those are added up.",
    }),
    "three_ways_apart": (
        "DDP trains in two ranks on half-batches, and one process alone on whole batches. How far apart are the "
        "weights of the two after ten steps?", {
            "about 1e-16": "The mean of two half-batches' mean gradients is the mean gradient of the batch, so all "
                           "steps are the same. But one process adds up the numbers in another order, and float64 "
                           "rounds each sum by about 1e-16 of it.",
            "0: they are equal to the last bit": "Both compute the same sums, but in another order. float64 keeps "
                                                 "about 16 digits, so the last of them may differ.",
            "about 1e-2": "The mean of two half-batches' mean gradients is the mean gradient of the batch, because "
                          "both halves have 32 images. So all steps are the same, up to rounding.",
        }),
    "averaged_again": (
        "Four micro-batches, four backwards, and no `no_sync()`: the first micro-batch's gradient is in four "
        "averages. What is its share in the end?", {
            "right: as large as if it had been averaged once": "After the first average all ranks hold the same, and "
                                                               "the mean of equal numbers is this number. So "
                                                               "`no_sync()` is not there for the result: it "
                                                               "saves all-reduces.",
            "too small: it has been divided four times": "Each rank divides by the number of ranks, and then the "
                                                         "ranks' parts are added up: two halves of equal "
                                                         "numbers are this number again.",
            "too large: the ranks' shares have been added up again and again": "What is added up has been divided by "
                                                                               "the number of ranks.",
        }),
}
