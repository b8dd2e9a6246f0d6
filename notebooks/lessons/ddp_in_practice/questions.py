"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "padded_test": ("Three ranks test these ten answers with a `DistributedSampler`. What do they count?", {
        "5 right of 12 tested":
            "Three equal shares need 12 samples. So the first two are tested twice, and the first one is right. The "
            "accuracy depends on the number of ranks.",
        "4 right of 10 tested": "Ten samples make no three equal shares. The sampler fills them up.",
        "4 right of 12 tested":
            "Twelve is right. But the first two samples are tested twice, and the first one is right.",
    }),
    "unequal_tokens": ("How much does a token of rank 1 count, compared with a token of rank 0?", {
        "three times as much":
            "Each rank's mean has the same weight in DDP's average. In rank 0, 48 tokens share it, in rank 1 only 16.",
        "as much":
            "That would need a mean over all 64 tokens. Each rank takes the mean of its own, and DDP averages two "
            "means.",
        "a third": "It is the other way round: the fewer tokens share a rank's mean, the more each of them counts.",
    }),
    "joined_average": (
        "With `Join`, which averaged gradient does rank 1 see in its fourth batch? Its own gradient is 1.", {
            "0.5": "The sum is 1 + 0, because rank 0 adds a zero. It is still divided by two, the initial number of "
                   "ranks, so every batch of the epoch counts the same.",
            "1": "Rank 0 adds a zero, and the sum is divided by the initial number of ranks, which is two.",
            "0": "Only rank 0 adds a zero. Rank 1's own gradient is in the sum, too.",
        }),
    "which_part_early": (
        "Which of the optimizer's, the scheduler's and the random states, taken from the first snapshot, changes the "
        "final weights?", {
            "each of them": "The optimizer's state has the momentum and the learning rate, the scheduler's has the "
                            "epoch, from which its next `step()` sets the rate, and dropout draws random numbers.",
            "only the optimizer":
                "The scheduler sets the learning rate of the epochs that come, and dropout draws random numbers in "
                "every step.",
            "the optimizer and the scheduler":
                "Dropout draws random numbers in every step. From other random states it leaves out other numbers, "
                "so the gradients differ.",
        }),
    "compiled_graphs": (
        "Into how many graphs does `DDP(torch.compile(net))` compile these layers?", {
            "4": "A graph ends where a bucket is full. So the first bucket's all-reduce can begin while the backward "
                 "of the next graph computes. In torch, this is the work of the `DDPOptimizer`.",
            "1": "Then no all-reduce could begin before the whole backward has ended.",
            "2": "Only graphs of the forward are counted. What does DDP wait for, before it begins an all-reduce?",
        }),
}
