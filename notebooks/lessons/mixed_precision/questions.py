"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "next_of_2048": (
        "In fp16, what is 2048 + 1?", {
            "2048": "The fraction has 10 bits, so there are 1,024 numbers from 2048 to 4096, and the step between "
                    "two neighbours is 2: it grows with the numbers. 2049 lies halfway between 2048 and 2050. It "
                    "goes to the one whose last bit is 0, and that is 2048.",
            "2049": "From 2048 on, the step from one fp16 number to the next is 2. So fp16 has no 2049.",
            "infinity": "Infinity begins only near the largest number, 65,504.",
        }),
    "tiny_gradient_fp16": (
        "If p is one in a million, the gradient is 0.000001 / 256, about 4e-9. What is that in fp16?", {
            "0": "The smallest number of fp16 above 0 is 6e-8. 4e-9 is less than half of it, so it is "
                 "rounded to 0. Many gradients of a trained network are as small as that.",
            "4e-09": "The table above says that the smallest number of fp16 above 0 is 6e-8. 4e-9 is too "
                     "small.",
            "6e-08": "6e-8 is the smallest number of fp16 above 0. But 4e-9 is nearer to 0.",
        }),
    "loss_divided": (
        "We train in fp16 without a loss scale, and divide the loss by 100,000. What happens?", {
            "it does not learn": "Dividing the loss divides all gradients. At the start, 97 in 100 of those that flow "
                                 "back here then become 0 in fp16. Of the outputs, only those of the right digits "
                                 "keep one. Adam enlarges these, and the loss becomes worse than guessing. With a "
                                 "scale, or in bf16, most of the others stay alive, too. So whether fp16 needs a scale "
                                 "depends on how small the gradients are, and no warning tells you.",
            "an error": "A gradient of 0 is a legal gradient, so nothing checks for it, and nothing warns.",
            "the loss becomes NaN": "NaN comes from numbers that are too large. Here the gradients are too "
                                    "small.",
        }),
    "bf16_weights_move": (
        "With masters, each weight is rounded to bf16 after every step. If most updates are less than half a step "
        "of bf16, how far do most weights move?", {
            "as far as in fp32": "The small updates add up in the fp32 master, and its bf16 copy is never more than "
                                 "half a step away from it. Without masters, each update starts from the rounded "
                                 "weight, and is rounded away again: from 0.03125 on, a step of bf16 is 0.00024 or "
                                 "more, and an update is about 0.0001. So most weights do not move, and the network "
                                 "learns less.",
            "about half as far": "Rounding puts a weight at most half a step of bf16 away from its master, however "
                                 "far the master has moved.",
            "not at all": "That is so without masters. Here the next update is added to the fp32 master, and not to "
                          "the rounded weight.",
        }),
    "clip_first": (
        "We train with SGD. What happens if the gradients are clipped before `unscale_` divides them by the scale?", {
            "training hardly moves": "The scaled gradients are far above the limit, so they are clipped to "
                                     "it. Then they are divided by the scale, 65,536. The step is that much "
                                     "too small. Adam divides such a factor out, so it still learns.",
            "an error": "Both calls are allowed at that place, so nothing raises an error.",
            "nothing changes": "The limit is meant for true gradients. Before `unscale_`, the gradients are "
                               "still multiplied by the scale.",
        }),
    "nothing_finite": (
        "In fp16 the loss is not finite, so the scaler halves its scale, step after step. Is the loss finite after "
        "20 steps?", {
            "no": "A scale changes gradients. It multiplies the loss after the forward, and here the forward itself "
                  "overflows: 65,535 is more than fp16's largest number. So every step is skipped, silently, and no "
                  "weight changes. A scale that falls and falls is a symptom that you can see. The cure is to "
                  "normalise the input, to keep that layer in fp32, or to use bf16, which can hold these numbers.",
            "yes, once the scale is small enough": "The loss is already infinite or NaN before it is multiplied by "
                                                   "the scale.",
            "yes, once a few steps have changed the weights": "The scaler skips each step whose gradients are not "
                                                              "finite. So no weight changes.",
        }),
    "hidden_instructions": (
        "We hide the instructions for 16 bits. With AVX-512, oneDNN imitates each of them by eight others. How long "
        "does a product in bf16 take?", {
            "longer than in fp32":
                "A register holds twice as many numbers of 16 bits. So eight instructions do the work of two for "
                "fp32. To convert both matrices to fp32, multiply, and convert the result back (*converted*), takes "
                "little more than fp32, because each number is converted once, and used 256 times. With AVX2 alone, "
                "oneDNN has nothing that fits, and torch uses loops of its own. For fp16, torch uses such loops "
                "wherever the instructions for fp16 are missing or hidden. A factor above 1× is slower than fp32. (On "
                "a CPU whose instructions cannot be hidden, for example an Arm, the lines are alike.)",
            "half as long as in fp32": "The numbers take half the bytes. But a large product waits for "
                                       "arithmetic, not for memory.",
            "as long as in fp32": "That is nearly so if both matrices are converted to fp32 once "
                                  "(*converted*). But here eight instructions stand for one.",
        }),
    "infinite_on_one_rank": (
        "Only rank 1's loss is infinite in step 2. Which ranks skip that step?", {
            "both": "DDP averages the gradients before a scaler looks at them. The average with an infinite "
                    "number is not finite, so both scalers see that and skip the step. They exchange "
                    "nothing, and still their scales agree.",
            "rank 1": "If only rank 1 skipped the step, the weights of the ranks would differ from then on. "
                      "Which gradients does rank 0's scaler see?",
            "none": "Each rank has a scaler, and each scaler looks for gradients that are not finite.",
        }),
}
