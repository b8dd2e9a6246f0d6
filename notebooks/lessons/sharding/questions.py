"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "checkpointing_costs": (
        "Checkpointing computes each block's forward twice. A backward costs about two forwards. How much "
        "more computing is that at most?", {
            "a third": "Without checkpointing a step costs 1 forward and 2 for backward: 3. With it, at most "
                       "4.",
            "twice as much": "Only the forward is repeated. The backward, which costs more, is not.",
            "nothing": "Backward needs what was not kept, so it has to be computed again.",
        }),
    "ddp_bytes": (
        "Plain DDP in float32, with AdamW. How many bytes does a rank hold for each parameter right after "
        "backward, without activations?", {
            "20": "Parameter 4, gradient 4, AdamW's two means 8, and the gradient once more in its bucket: 4. "
                  "With `gradient_as_bucket_view` it is 16. Between two steps it is 16 either way, because the "
                  "buckets stay.",
            "16": "That holds for a process alone, or with `gradient_as_bucket_view=True`. Plain DDP has each "
                  "gradient twice.",
            "12": "Parameter 4, gradient 4, and AdamW's two means 8 are 16 already, without DDP.",
        }),
    "zero_apart": (
        "That was on four ranks. And on two: how far are the weights of a stage from DDP's, after three steps?", {
            "equal to the last bit":
                "Each rank adds the same two gradients, and AdamW treats each number by itself, so it does "
                "not matter who holds it. With four ranks the order of adding differs, and with it the "
                "rounding.",
            "half as far as on four":
                "The difference on four ranks comes from the order of adding. Two numbers have no order: a + b is "
                "exactly b + a.",
            "as far as on four":
                "The difference comes from the order in which four gradients are added. For two of them, a + b is "
                "exactly b + a.",
        }),
    "mixed_states": (
        "With bf16 weights and gradients and float32 masters a rank of DDP with views holds 16 bytes for each "
        "parameter, as in float32. In float32, stage 1 brings them down to 10 on four ranks. And here?", {
            "7":
                "Weight and gradient keep 2 bytes each. Master and two means take 12, and a rank holds a quarter of "
                "them: 2 + 2 + 12/4. In float32 it was 4 + 4 + 8/4. Of the same 16 bytes, more can be cut.",
            "10": "In float32, weight and gradient took 8 bytes that stage 1 does not cut. Here they take 4.",
            "4": "That is 16/4, all of it cut. Stage 1 leaves the weights and the gradients whole.",
        }),
    "zero_3_sends": (
        "With four ranks: how much does ZeRO-3 send in a step, compared with DDP?", {
            "half as much again":
                "DDP's all-reduce is two halves, a reduce-scatter and an all-gather. ZeRO-3 needs one "
                "reduce-scatter and two all-gathers: three halves. ZeRO-1 and ZeRO-2 send the same two "
                "halves as DDP. (On many ranks a half is 4 bytes for each parameter in float32, and 2 in bf16.)",
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
    "accumulated_whole": (
        "Four ranks accumulate over two parts of a batch, in float32, and reduce only after the second. How many bytes "
        "of gradients for each parameter does a rank hold between the parts?", {
            "4": "Only a reduce-scatter turns whole gradients into shards. Without it each rank keeps all of its own "
                 "until the last part. To reduce after each part keeps 1, and sends the gradients twice.",
            "1": "A shard takes 4/4 bytes, but a shard of the mean is there only after a reduce-scatter.",
            "0": "The second part adds to the gradients of the first one, so these have to be kept.",
        }),
}
