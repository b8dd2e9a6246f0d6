"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "four_from_two_ranks": (
        "The model knows only two ranks. How long will four take for the same large tensor, compared with "
        "two?", {
            "half as long again": "With four ranks, each sends 1.5 times the tensor over its own cable.",
            "as long": "Each rank sends 2(N − 1)/N times the tensor: once with two ranks, not so with four.",
            "twice as long": "Each rank has a cable of its own, and sends 1.5 times the tensor, not twice.",
        }),
    "eight_to_256": (
        "The 1.34B model, ZeRO-0 (which is DDP): from 8 to 256 GPUs, how many times as many tokens per "
        "second, in all?", {
            "about 13 times": "256 · 15,700 over 8 · 39,273: an efficiency of 40 %.",
            "32 times": "That would be the same tokens/s on each GPU, and the row says 39,273 and 15,700.",
            "0.4 times": "That is each GPU's rate, 15,700 over 39,273. But there are 32 times as many GPUs.",
        }),
    "other_layouts": (
        "On 16 and 32 nodes the model misses MFU by up to 16 %, and often several layouts lie within 10 %. "
        "In how many of table B's 26 cases will the planner choose exactly the published DP, TP and PP?", {
            "about one in four": "It cannot tell apart what lies closer together than its errors.",
            "nearly always":
                "Then it would have to tell apart layouts that lie closer together than its errors.",
            "about half":
                "In about half, the published one is within 10 % of its choice. But that is not the same.",
        }),
    "true_mfu": (
        "nanoGPT divides by an A100's 312 TFLOP/s. What is the true MFU of the run that reported 104 % on "
        "an H100?", {
            "33 %": "104 % of 312 are 324 TFLOP/s; of 989 that is a third.",
            "52 %": "That is half: it would be right if the script's number were half of the true one.",
            "16 %": "That divides by 1,979, which holds for 2:4 sparsity. Training is dense.",
        }),
}
