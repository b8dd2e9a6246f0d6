"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "orders_without_set_epoch": (
        "Without `set_epoch`, how do the orders of three epochs differ?", {
            "not at all": "The sampler cannot know that a new epoch has begun. It says nothing.",
            "a new order each":
                "It is seeded with `seed + epoch`, and nobody has said that the epoch changed.",
        }),
    "joined_average": (
        "With `Join`, what does rank 1 see as the averaged gradient in its fourth batch, where its own is 1?", {
            "0.5": "DDP still divides by two: the sum is 1 + 0. The last batches count half.",
            "1": "Who averages 1 and 0 over two ranks?",
            "0": "Its own gradient is in the sum, too.",
        }),
    "which_part_early": (
        "Which part may be the early one, and the weights end with the same bits all the same?", {
            "the scaler":
                "Its scale has not changed. Once a gradient overflows, it does, and then the scaler counts,"
                " too.",
            "the optimizer": "Its momentum would point where the training was going three epochs ago.",
            "the random states": "Dropout would then leave out other numbers.",
        }),
}
