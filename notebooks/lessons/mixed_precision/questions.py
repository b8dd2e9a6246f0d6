"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "next_of_2048": (
        "In fp16, what is 2048 + 1?", {
            "2048": "From here on, only even numbers. 2049 lies half-way; the tie goes to 2048.",
            "2049": "From 2048 on, the step from one fp16 number to the next is 2. There is no 2049.",
            "infinity": "That begins far higher: the table above shows fp16's largest number.",
        }),
    "tiny_gradient_fp16": (
        "p is one in a million, so the gradient is 0.000001 / 256, about 4e-9. What is that in fp16?", {
            "0": "It is less than half of the smallest number, so 0 is nearer.",
            "4e-09": "Look at fp16's smallest number in the table above.",
            "6e-08": "The smallest number that fp16 has. But 4e-9 is nearer to another one.",
        }),
    "loss_divided": (
        "fp16, no loss scale, the loss divided by 100,000. What happens?", {
            "it hardly learns": "Most gradients are 0, and no optimizer can divide that away.",
            "an error": "Nothing checks. A gradient of 0 is as good as any other.",
            "the loss becomes NaN": "That needs something too large. Here everything is too small.",
        }),
    "bf16_weights_move": (
        "Weights in bf16, updates of about a ten-thousandth. What will most weights do?", {
            "not move at all": "The next number is too far away: each update rounds to nothing.",
            "move a little less": "Rounding knows no little: it is a whole step, or none.",
            "become NaN": "Nothing is too large here.",
        }),
    "clip_first": (
        "What if the clipping comes before `unscale_`?", {
            "training crawls": "Clipped while they are scaled, they are divided after that.",
            "an error": "Both calls are legal where they stand.",
            "nothing changes": "The limit is meant for true gradients. Which ones does it see now?",
        }),
    "nothing_finite": (
        "Nothing is finite, so the scaler halves its scale, step after step. Does fp16 recover?", {
            "no": "The forward overflows, whatever the scale. Every step is skipped.",
            "yes, when the scale is small": "The loss is broken before the scale is even applied.",
        }),
    "hidden_instructions": (
        "The instructions for 16 bits are hidden, those for fp32 are not. A product in bf16 takes …", {
            "longer than fp32":
                "What can be multiplied is fp32: so convert, multiply as before, convert back.",
            "half the time of fp32": "Half the bytes, yes. But a product does not wait for its bytes.",
            "the time of fp32": "Then converting the numbers would have to be free.",
        }),
    "infinite_on_one_rank": (
        "Only rank 1's loss is infinite in step 2. Which ranks skip that step?", {
            "both": "Gradients are averaged before a scaler looks at them: infinity is everywhere.",
            "rank 1": "Then the ranks would hold different weights from there on.",
            "none": "Each rank has a scaler, and each scaler looks.",
        }),
}
