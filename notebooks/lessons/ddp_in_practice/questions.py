"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "orders_without_set_epoch": ("Without `set_epoch`, how do the orders of three epochs differ?", {
        "they are all the same":
            "The sampler shuffles with the seed `seed + epoch`, and only `set_epoch` changes the epoch. It "
            "prints no warning.",
        "each epoch has a new order": "The sampler cannot know that a new epoch has begun, unless you tell "
                                      "it.",
    }),
    "joined_average": (
        "With `Join`, which averaged gradient does rank 1 see in its fourth batch? Its own gradient is 1.", {
            "0.5": "The sum is 1 + 0, because rank 0 adds a zero. DDP still divides by two ranks.",
            "1": "Rank 0 adds a zero, and DDP divides the sum by two ranks.",
            "0": "Only rank 0 adds a zero. Rank 1's own gradient is in the sum, too.",
        }),
    "which_part_early": (
        "Which part can come from the first snapshot without changing the final weights? "
        "(No gradient overflows in this training.)", {
            "the scaler": "Its scale had not changed since the first snapshot. Once a gradient overflows, it "
                          "does change.",
            "the optimizer": "Its momentum would be that of three epochs ago.",
            "the random states": "Dropout would leave out other numbers.",
        }),
}
