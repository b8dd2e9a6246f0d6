"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "idle_of_four": (
        "Four stages, four micro-batches: for which share of the time does a rank stand idle?", {
            "3/7": "Each rank works 4 · 3 = 12 units. The whole takes (4 + 3) · 3 = 21, because three others "
                   "come before the last rank can begin, and three after it. So 9 of 21 units are idle: with p "
                   "stages and m micro-batches, the share is (p − 1)/(m + p − 1).",
            "1/4": "Each rank works 4 · 3 = 12 units. But the whole takes more than 16: three units for each "
                   "of 4 + 3.",
            "3/4": "That holds with a single micro-batch, as in the picture above.",
        }),
    "one_f_one_b_saves": (
        "1F1B instead of GPipe, with four stages and eight micro-batches: what becomes smaller?", {
            "what a rank holds": "Each backward frees the activations of its micro-batch before the next "
                                 "forward adds some. Rank r never holds more than p − r micro-batches. The "
                                 "bubble is the same: the first forward and the last backward travel as far "
                                 "as before.",
            "the bubble": "The last rank still waits for three forwards at the start, and rank 0 for three "
                          "backwards at the end.",
            "both": "The activations become fewer. But the first forward and the last backward travel as far "
                    "as before, so the bubble stays.",
        }),
    "interleaving_costs": (
        "Two short stages on each rank instead of a long one, with four ranks and eight micro-batches. The "
        "bubble becomes smaller. What is the price?", {
            "more messages, and more activations held":
                "Seven borders instead of three: 112 messages, not 48. And a rank does more forwards before "
                "its first backward: rank 0 holds up to 11 half stages, which are 5.5 micro-batches, not 4.",
            "more messages": "There are 112, not 48. But a rank also does more forwards before its first "
                             "backward, so it holds more.",
            "more messages, and more weights held": "There are 112 messages, not 48. But the weights are the "
                                                    "model's, however its layers are shared out to stages.",
        }),
    "two_layers_all_reduces": (
        "Each of two ranks computes a part of `up` and of `down`, forward and backward. How many all-reduces "
        "does the net need?", {
            "two": "One in forward, for the sum of the outputs. One in backward: each rank has only its part "
                   "of the input's gradient, and these parts must be added up.",
            "one": "That is the one in forward. In backward each rank has only its part of the input's "
                   "gradient.",
            "four": "Between `up` and `down` nothing is sent, because each rank has exactly the inputs that "
                    "its part of `down` needs.",
        }),
    "gradient_of_a_norm": (
        "Each rank has its part of a text, `Shard(1)`. The weight of a norm is the same in all ranks, "
        "`Replicate`. What does autograd leave as this weight's gradient?", {
            "Partial": "Each rank has what its part of the text adds to the gradient. Nothing has been sent: "
                       "torch knows that a sum is missing, and computes it when it is needed.",
            "Replicate":
                "For that the ranks would have to add up their terms, and nothing has been sent yet.",
            "Shard":
                "The text is cut, and not the weight: each rank has a gradient of the weight's full size.",
        }),
    "mesh_that_fits": (
        "Llama 3 70B, texts of 4,096 tokens, no checkpointing: with 16 × 128 × 8 a rank holds 39 GiB at most. "
        "And with 16 × 1,024 × 1?", {
            "more than 80 GiB": "Of the 39 GiB about 1 GiB are states: 1,051 GiB among 1,024 ranks. About 11 GiB are "
                                "activations that eight ranks shared: now one rank keeps all 90. About 20 GiB, "
                                "around the norms, each of the eight kept whole: these stay.",
            "about 39 GiB, too": "The states are cut into 1,024 parts, as before. But eight ranks shared a part "
                                 "of a text's activations, and now nobody shares them.",
            "less than 39 GiB": "There are eight times as many shards, but also an eighth of the tensor-parallel "
                                "ranks. So a rank's part of the states is as large as before.",
        }),
    "not_divided": (
        "The division by 8 is missing. Whose final loss changes by more than 1 %?", {
            "SGD's, and that of AdamW with clipping": "AdamW divides each gradient by a running mean of its "
                                                      "size, so a factor of 8 disappears. SGD takes steps "
                                                      "eight times too long. Clipping shortens 20 of the 50 "
                                                      "right gradients, and 49 of those that are eight times "
                                                      "too large. Then AdamW sees equal norms where the right "
                                                      "gradients become smaller. That is another training, "
                                                      "even if its loss is the smaller one.",
            "only SGD's": "With clipping it also matters: the norms were 0.16 to 0.01. Times 8, nearly all are above "
                          "0.05, and are shortened.",
            "everybody's": "AdamW divides each gradient by a running mean of its size, so a constant factor "
                           "disappears.",
        }),
    "where_is_c": (
        "In program C, `down` and `up` are right, `norm` and `words` are not. Where is the mistake?", {
            "before `up` (place 1)":
                "Backward comes from the loss: through `down` and `up`, then to the norm. So it goes wrong "
                "between `up` and the norm. Each rank knows what its part of `up` adds to this gradient, and "
                "nobody sums it.",
            "in the loss (place 3)": "Backward begins at the loss, so `up` and `down` would be wrong, too.",
            "in the sums after backward (place 4)": "A sum that is missing there leaves a part in each rank, "
                                                    "which the table would say. It says so of D and E.",
        }),
}
