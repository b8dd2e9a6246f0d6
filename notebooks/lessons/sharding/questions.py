"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "bytes_a_parameter": (
        "Parameters, gradients and AdamW's state together: how many bytes for each parameter?", {
            "16": "Four numbers of 4 bytes each.",
            "8": "Parameter and gradient make 8. AdamW's two running means are missing.",
            "12": "Parameter, gradient, and two running means: that is four numbers, not three.",
        }),
    "checkpointing_costs": (
        "Checkpointing computes each block's forward twice. A backward costs two forwards. At most how much"
        " more computing?", {
            "a third": "Forward 1, backward 2: 3 without, at most 4 with it.",
            "twice as much": "Only the forward is done again, not the backward.",
            "nothing": "What was not kept has to be computed again.",
        }),
    "zero_apart": (
        "Three steps with DDP, and three with each stage of ZeRO, on two ranks. How far apart are the "
        "weights?", {
            "equal to the last bit":
                "a + b is b + a, halving is exact, and AdamW does to each number what it always does.",
            "up to rounding":
                "With more ranks, yes: their gradients may be added in another order. Two have only one "
                "order.",
            "ZeRO-3 is another training": "It sends more. What it computes is the same.",
        }),
    "zero_3_sends": (
        "By the book, with four ranks: how much does ZeRO-3 send, compared with DDP?", {
            "half as much again": "One reduce-scatter and two all-gathers: three halves of an all-reduce.",
            "as much": "It gathers each layer twice, once for forward and once for backward.",
            "twice as much": "An all-reduce is two halves; ZeRO-3 has three.",
        }),
    "without_reshard": (
        "`reshard_after_forward=False` leaves units as they are after their forward. What changes?", {
            "fewer gathers, more memory":
                "One gather for each unit; and all parameters are whole when backward begins.",
            "fewer gathers, as much memory":
                "What is not dropped is held: all parameters are whole when backward begins.",
            "as many gathers, more memory": "What is still whole need not be gathered again.",
        }),
    "which_loads": (
        "Which of these loads without an error?", {
            "a flipped bit, and a model with a block fewer":
                "The numbers are not checked. And the smaller model gets all it asks for.",
            "none: each is noticed":
                "Nobody looks at the bits of the numbers, and nobody misses what was not asked for.",
            "all but the missing files":
                "A cut file cannot be read, and a block more asks for what is not there.",
        }),
}
