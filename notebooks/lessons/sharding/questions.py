"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "bytes_a_parameter": (
        "Parameters, gradients and AdamW's state together: how many bytes for each parameter, in float32?", {
            "16": "Parameter, gradient and AdamW's two running means are four numbers of 4 bytes. In float32 "
                  "that holds for any model.",
            "8": "That counts parameter and gradient. AdamW's two running means need 8 bytes more.",
            "12": "AdamW keeps two running means, not one: of the gradient, and of its square.",
        }),
    "checkpointing_costs": (
        "Checkpointing computes each block's forward twice. A backward costs about two forwards. How much "
        "more computing is that at most?", {
            "a third": "Without checkpointing a step costs 1 forward and 2 for backward: 3. With it, at most "
                       "4.",
            "twice as much": "Only the forward is repeated. The backward, which costs more, is not.",
            "nothing": "Backward needs what was not kept, so it has to be computed again.",
        }),
    "zero_apart": (
        "We train three steps with DDP, and three with each stage of ZeRO, on two ranks. How far apart are "
        "the weights?", {
            "equal to the last bit":
                "Each rank adds the same two gradients, and AdamW treats each number by itself, so it does "
                "not matter who holds it. With four ranks the order of adding differs, and with it the "
                "rounding.",
            "up to rounding":
                "That holds for more ranks, where gradients may be added in another order. For two numbers, "
                "a + b is exactly b + a.",
            "ZeRO-3 is another training": "ZeRO-3 sends more, but it computes the same numbers.",
        }),
    "mixed_states": (
        "In float32 a DDP rank holds 16 bytes of states for each parameter. How many does it hold with bf16 "
        "weights, bf16 gradients and float32 masters?", {
            "16, as before":
                "Weight and gradient take 2 bytes each, so they save 4. But the master takes 4, and the two "
                "means take 8 as before. The stages of ZeRO gain: more of the 16 bytes can be cut.",
            "12": "That is the optimizer's part alone: the master and two means, of 4 bytes each.",
            "8":
                "Half of 16 would mean that everything takes 2 bytes. The master and the two means stay "
                "float32.",
        }),
    "zero_3_sends": (
        "With four ranks: how much does ZeRO-3 send in a step, compared with DDP?", {
            "half as much again":
                "DDP's all-reduce is two halves, a reduce-scatter and an all-gather. ZeRO-3 needs one "
                "reduce-scatter and two all-gathers: three halves. ZeRO-1 and ZeRO-2 send the same two "
                "halves as DDP.",
            "as much": "It gathers each layer twice, once for forward and once for backward. DDP sends "
                       "nothing for that.",
            "twice as much": "Each of its three collectives sends half of an all-reduce: one and a half "
                             "together.",
        }),
    "without_reshard": (
        "`reshard_after_forward=False` keeps units gathered after their forward. What changes?", {
            "fewer gathers, more memory":
                "Each unit is gathered once a step and not twice. In return all parameters are whole when "
                "backward begins.",
            "fewer gathers, as much memory":
                "What is not dropped stays in memory: all parameters are whole when backward begins.",
            "as many gathers, more memory": "What is still whole when backward begins is not gathered again.",
        }),
    "saved_meanwhile": (
        "After `async_save` returns, we train a step, while the thread may still be writing. Which weights "
        "does the checkpoint hold?", {
            "those from before the step":
                "`async_save` copies the state first and returns only then. The thread writes the copy, so "
                "the weights may change at once. The copy needs memory until it is written.",
            "those from after the step":
                "The thread writes a copy that `async_save` made before it returned. A step cannot reach it.",
            "some from before, some from after":
                "That would happen if the thread read the weights themselves. It writes a copy, made before "
                "`async_save` returned.",
        }),
    "which_loads": (
        "Which of these loads without an error?", {
            "a flipped bit, and a model with a block fewer":
                "DCP does not check the numbers themselves. The smaller model finds everything that it asks "
                "for, and DCP does not mind what nobody asks for.",
            "none: each is noticed":
                "DCP does not check the numbers, and it does not report what the model did not ask for.",
            "everything but the missing files":
                "A cut file cannot be read, and a model with a block more asks for tensors that were not "
                "saved.",
        }),
}
