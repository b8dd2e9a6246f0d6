"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "who_decodes": (
        "With `num_workers=0`, who decodes the photos?", {
            "the main process, between two steps":
                "It loads a batch, then computes, then loads: one after the other.",
            "a thread in the background": "There is none. What the main process does not do, nobody does.",
            "the device": "It gets tensors. Files are the CPU's work.",
        }),
    "workers_needed": (
        "Loading a batch takes 30 ms, a step 10 ms. How many workers until the device never waits, once it "
        "has begun?", {
            "3": "Three side by side deliver a batch every 10 ms: just enough.",
            "2": "Two workers deliver a batch every 15 ms; the device wants one every 10 ms.",
            "as many as possible":
                "The fourth finds nothing left to win, and costs memory and time to start.",
        }),
    "stalled_order": (
        "`in_order=False`, same seed, same data; once the disk stalls, once it does not. Same trained "
        "weights?", {
            "no":
                "Each step begins where the last one ended, so another order of the batches leads elsewhere.",
            "yes, the seed decides":
                "It decides where the weights begin. Who comes first decides the order of the steps.",
        }),
    "small_in_memory": (
        "A `TensorDataset` in memory, nothing to decode. How does an epoch with two workers compare with "
        "none?", {
            "slower": "Starting workers and handing batches over costs more than indexing a tensor.",
            "faster": "There is no loading to hide.",
            "the same": "Somebody has to start the workers and carry every batch from process to process.",
        }),
    "which_repeats": (
        "Which source repeats itself?", {
            "the dataset's own generator":
                "Each worker has a copy of the dataset, and of the generator in it.",
            "`numpy.random`": "Older posts warn of it. The loader seeds numpy in each worker now.",
            "`torch.rand`": "Each worker's seed is a base, new in each epoch, plus the worker's number.",
        }),
    "steps_of_loaders": (
        "13 items, every second one for each of 2 ranks, batches of two. How many steps do the ranks make?", {
            "rank 0 four, rank 1 three": "Seven items make four batches, six make three.",
            "four each": "Rank 0 has items 0, 2 … 12: seven. Rank 1 has one less.",
            "three each": "The last batch may be small, but it is a batch.",
        }),
}
