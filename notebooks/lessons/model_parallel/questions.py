"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "idle_of_four": (
        "Four stages, four micro-batches: for which share of the time does a rank stand idle?", {
            "3/7": "Each rank works 4 · 3 = 12 units. The whole takes (4 + 3) · 3 = 21, because three others "
                   "come before the last rank can begin, and three after it. So 9 of 21 units are idle.",
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
    "mesh_that_fits": (
        "Llama 3 70B, one text of 4,096 tokens, GPUs of 80 GiB, no checkpointing. Which meshes (copies × "
        "shards × tensor) fit?", {
            "16 × 128 × 8 and 128 × 16 × 8": "Eight ranks share the activations of a text, so each holds "
                                             "less. Without tensor parallelism one rank keeps all "
                                             "activations of its text, which are far larger than its share "
                                             "of the states.",
            "16 × 128 × 8 and 16 × 1024 × 1": "More shards cut the states, which are small already: 1,051 "
                                              "GiB among 1,024 ranks. They do not cut the activations.",
            "all three": "Without tensor parallelism one rank keeps all activations of its text: more than "
                         "80 GiB.",
        }),
    "not_divided": (
        "The division by 8 is missing. Whose final loss changes by more than 1 %?", {
            "SGD's, and that of AdamW with clipping": "AdamW divides each gradient by a running mean of its "
                                                      "size, so a factor of 8 disappears. SGD takes steps "
                                                      "eight times too long. Clipping cuts gradients that "
                                                      "are eight times too large more often, down to the "
                                                      "same norm, so large and small ones look alike. That "
                                                      "is another training, even if its loss is sometimes "
                                                      "the smaller one.",
            "only SGD's": "With clipping it also matters: gradients that are eight times too large are cut "
                          "more often.",
            "everybody's": "AdamW divides each gradient by a running mean of its size, so a constant factor "
                           "disappears.",
        }),
}
