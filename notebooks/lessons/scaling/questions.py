"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "four_from_two_ranks": (
        "Both times the tensor is large, and each rank has a cable of its own. How long do four ranks take "
        "for an all-reduce, compared with two?", {
            "half as long again":
                "A rank sends 2(N − 1)/N times the tensor: once with two ranks, 1.5 times with four. All "
                "ranks send at the same time, so the time grows as what one rank sends.",
            "as long":
                "A rank sends 2(N − 1)/N times the tensor, and that grows with N: from 1 to 1.5 times.",
            "twice as long":
                "There are twice as many ranks, but each has a cable of its own, and sends only 1.5 times "
                "the tensor.",
        }),
    "eight_to_256": (
        "The batch stays the same, and nothing hides the all-reduce. How many times as many tokens per "
        "second do 256 GPUs train, all together, as 8 GPUs?", {
            "about 13 times":
                "On 8 GPUs nearly the whole step of 3.3 s is computing. On 256 GPUs it takes 3.3 s / 32, "
                "about 0.1 s, and the all-reduce adds 0.16 s. 3.3 / 0.26 is about 13.",
            "about 20 times": "3.3 / 0.16 is about 20, but the step also needs 0.1 s for computing.",
            "32 times": "Computing becomes 32 times as quick, but the all-reduce does not.",
        }),
    "double_again": (
        "The critical batch size is below 20 here. You go from batch 256 to batch 512, on twice as many "
        "GPUs. By the law, how many of the steps do you save?", {
            "hardly any":
                "critical/batch is already below 0.1, so the number of steps is close to the least. A second "
                "half of the batch makes the gradient more exact, but the step hardly better.",
            "half of them":
                "That holds far below the critical batch size, where critical/batch is much larger than 1.",
            "a quarter of them":
                "That is so when you start at the critical batch size: the sum falls from 1 + 1 to 1 + 1/2.",
        }),
    "planner_elsewhere": (
        "The planner counts every byte that is sent and the whole bubble of 1F1B. These large runs hide "
        "communication behind computing, and pipelines can be interleaved, which makes the bubble smaller "
        "(lesson 10). Which MFU will the planner predict for them?", {
            "too small an MFU":
                "It knows no overlap and no interleaving, so its steps are too long. It also takes computing "
                "for slow when a rank's part of an activation is small, as with TP 8 here. That law was fitted "
                "on another library, and does not hold for these runs. (It does not know recompute either, "
                "but recompute would make its steps longer still.)",
            "too large an MFU":
                "For that, it would have to leave out something that takes longer than the bubble and the "
                "communication that it counts in full. It leaves out recompute and the sends between stages.",
            "about the right MFU":
                "Its two numbers were fitted on one cluster with one library, which hid less of its "
                "communication.",
        }),
    "four_times_the_gpus": (
        "Your training moves to four times as many GPUs. A save takes as long as before. How often should "
        "you save now?", {
            "twice as often":
                "The MTBF is a quarter of what it was. The best interval grows with the root of the MTBF, so "
                "it is half of what it was.",
            "four times as often":
                "Failures come four times as often, but the interval follows the root of the MTBF: each save "
                "costs time, too.",
            "as often as before":
                "The formula has the MTBF in it. With the old interval, failures would cost four times as "
                "much.",
        }),
    "true_mfu": (
        "nanoGPT divides by an A100's 312 TFLOP/s. An H100 has a peak of 989 TFLOP/s in bf16. What is the "
        "true MFU of the run that reported 104 % on an H100?", {
            "33 %": "The run reached 104 % of 312, which is 324 TFLOP/s. That is a third of 989.",
            "52 %": "That would be right if an H100's peak were twice an A100's. It is three times as high.",
            "16 %": "That divides by 1,979 TFLOP/s, which hold for 2:4 sparsity. Training is dense.",
        }),
}
