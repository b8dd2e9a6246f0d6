"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "who_decodes": (
        "With `num_workers=0`, who decodes the photos?", {
            "the main process, between two steps":
                "It loads a batch, computes a step, and loads the next batch. While it loads, the device "
                "waits.",
            "a thread in the background":
                "Without workers the loader has no thread. Only the main process runs.",
            "a worker, which the loader always starts": "With 0 there is none.",
        }),
    "three_workers": (
        "Loading a batch takes 30 ms, a step takes 10 ms. How many times as fast is a long epoch with three "
        "workers, compared with none?", {
            "4 times":
                "Without workers, a batch takes 30 + 10 ms, one after the other. Three workers side by side "
                "deliver three batches in 30 ms, so the device finds one every 10 ms, and never waits. A "
                "fourth worker would change nothing.",
            "3 times":
                "Three workers load three times as fast. But they also load *while* the device computes. "
                "How long does a batch take without workers, loading and step together?",
            "1.3 times":
                "That would be one worker: it hides the step of 10 ms behind the 30 ms of loading. Three of "
                "them also load side by side.",
        }),
    "stalled_order": (
        "`in_order=False`, the same seed and the same data, once with the stalls and once without. Are the "
        "trained weights the same?", {
            "no":
                "Two batches come later with the stalls, and even without stalls, batches that are loaded at the "
                "same time may change places. Every step starts from the weights that the step before it left, so "
                "another order of the batches ends with other weights. Keep the order while you compare runs.",
            "yes, because the seed is the same":
                "The seed decides the first weights. The order of the steps is decided by which batch "
                "arrives first.",
        }),
    "rows_in_memory": (
        "The workers already run when the clock starts. How long does this epoch take with two of them, "
        "compared with none?", {
            "longer":
                "A worker packs each batch into shared memory and announces it through a queue, and the "
                "main process opens it. Without workers, the main process only takes 50 rows and stacks "
                "them. Here the journey takes longer than that.",
            "not as long":
                "Two workers do take the rows side by side. But each batch then has to travel from process to "
                "process, and here that takes longer than taking the rows.",
            "about as long":
                "The main process has less to do per batch, if it only receives it? Receiving means to read "
                "a queue and to open shared memory, which takes longer here than taking 50 rows.",
        }),
    "own_generator": (
        "The loader has its defaults. In each of two epochs, each of two workers draws one number from the "
        "dataset's own generator. How many of the four numbers are different?", {
            "one":
                "The generator is copied with the dataset, as it was in the main process. Both workers get the "
                "same copy, and so do the workers of the next epoch: all draw the same first number. "
                "`worker_init_fn=own_generator` helps: each worker calls it as it starts, and makes a new "
                "generator from its own seed.",
            "two":
                "The workers do not share a generator, but each has a copy of the same one. And the next "
                "epoch starts new workers, with new copies. With `persistent_workers=True` it would be two.",
            "four":
                "The loader seeds the global generators of each worker. Of a generator that the dataset "
                "made, it knows nothing.",
        }),
    "steps_of_loaders": (
        "13 items, every second one for each of 2 ranks, in batches of two. How many steps do the ranks "
        "make?", {
            "rank 0 makes four, rank 1 three":
                "Rank 0 has the items 0, 2, … 12. Seven items make four batches, and the last one is "
                "smaller. Rank 1 has six items, and they make three: under DDP, rank 0 would wait for it in "
                "vain. A `DistributedSampler` gives all ranks the same number of batches: it deals out item 0 "
                "twice or, with `drop_last=True`, leaves out item 12.",
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
