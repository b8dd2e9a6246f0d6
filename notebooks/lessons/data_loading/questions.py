"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "who_decodes": (
        "With `num_workers=0`, who decodes the photos?", {
            "the main process, between two steps":
                "It loads a batch, computes a step, and loads the next batch. While it loads, the device "
                "waits.",
            "a thread in the background":
                "Without workers the loader has no thread. Only the main process runs.",
            "the device": "The device gets finished tensors. Reading and decoding files is the CPU's work.",
        }),
    "workers_needed": (
        "Loading a batch takes 30 ms, a step takes 10 ms. How many workers are needed so that the device "
        "never waits, once it has begun?", {
            "3": "Three workers side by side deliver three batches in 30 ms. The device needs three in 30 "
                 "ms.",
            "2": "Two workers deliver one batch every 15 ms. The device needs one every 10 ms.",
            "as many as possible":
                "A fourth worker changes nothing, because nobody waits any more. It only costs memory and a "
                "start.",
        }),
    "stalled_order": (
        "`in_order=False`, the same seed and the same data, once with the stalls and once without. Are the "
        "trained weights the same?", {
            "no":
                "Two batches come later with the stalls. Every step starts from the weights that the step "
                "before it left, so another order of the batches ends with other weights. Keep the order "
                "while you compare runs.",
            "yes, because the seed is the same":
                "The seed decides the first weights. The order of the steps is decided by which batch "
                "arrives first.",
        }),
    "small_in_memory": (
        "A `TensorDataset` in memory, with nothing to decode. How long does an epoch with two workers take, "
        "compared with one without workers?", {
            "longer":
                "Starting two workers and handing every batch from process to process costs more than taking "
                "rows out of a tensor.",
            "not as long": "There is no loading that could be hidden, and the workers have to be started.",
            "about as long":
                "The workers do not come for free: they have to start, and every batch has to travel.",
        }),
    "which_repeats": (
        "In each of two epochs, each of two workers draws one number from each source. Which source repeats "
        "its numbers?", {
            "the dataset's own generator":
                "It is copied with the dataset. Each worker of each epoch gets the same copy, and draws the "
                "same first number.",
            "`numpy.random`":
                "Older posts warn of it. Today the loader seeds `random`, torch and numpy in every worker.",
            "`torch.rand`":
                "The loader seeds torch in each worker: with a base that is new in every epoch, plus the "
                "worker's number.",
        }),
    "steps_of_loaders": (
        "13 items, every second one for each of 2 ranks, in batches of two. How many steps do the ranks "
        "make?", {
            "rank 0 makes four, rank 1 three":
                "Rank 0 has the items 0, 2, … 12. Seven items make four batches, and the last one is "
                "smaller. Rank 1 has six items, and they make three.",
            "both make four": "Rank 1 has only the six items 1, 3, … 11, which make three batches of two.",
            "both make three":
                "Rank 0 has seven items. The last one is a batch by itself, unless you drop it.",
        }),
    "packed_without_mask": (
        "Positions are right, but the only mask is the causal one. Which documents come out differently "
        "than alone?", {
            "the second and the third":
                "Their tokens also see the documents before them. The first document has nothing before it, "
                "so a look at the first document of a row finds no bug. With the mask and positions that "
                "count on, the same two are wrong: their tokens stand at places that they do not have alone.",
            "all three": "A token sees only earlier tokens. Before the first document there are none.",
            "none, because attention is causal":
                "Causal forbids a look ahead. The documents before a token stay visible.",
        }),
}
