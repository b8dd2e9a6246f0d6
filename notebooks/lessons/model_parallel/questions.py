"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "idle_of_four": (
        "Four stages, four micro-batches: which share of the time does a rank stand idle?", {
            "3/7": "The whole takes (4 + 3) · 3 units, and each rank works for 4 · 3 of them. Three sevenths "
                   "are idle.",
            "1/4": "Each rank works for 4 · 3 units, but the last one starts three forwards late, and the "
                   "first one ends three backwards late.",
            "3/4": "This is the share with a single micro-batch, as in the picture.",
        }),
    "two_layers_all_reduces": (
        "Each rank computes a part of `up` and of `down`, forward and backward. How many all-reduces does "
        "the net need?", {
            "two": "In forward, one adds up the parts of the output. In backward, one adds up the gradient "
                   "of the input, because all ranks used the input and each knows only its part of the "
                   "gradient.",
            "one": "Forward has one. In backward the parts of the input's gradient must be added up, too.",
            "four": "Nothing is sent between `up` and `down`, in neither direction.",
        }),
}
