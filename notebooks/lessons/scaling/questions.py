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
    "sixteen_times_as_long": (
        "With texts of 2,048 tokens, MPT-1B (24 layers, width 2,048, 1.3 billion parameters) trains 45,455 tokens/s on "
        "each of eight H100s. How many with texts of 32,768 tokens, which are 16 times as long?", {
            "about a quarter as many":
                "By the formula, the matrices need 7.9 GFLOP a token at any length, and attention 1.2 at 2,048 "
                "tokens, but 19.3 at 32,768. Together that is three times as many. Attention is also slower than "
                "products, so a token takes nearly four times as long.",
            "a sixteenth as many":
                "Only attention grows with the length of the text. At 2,048 tokens it has an eighth of the FLOPs.",
            "about as many":
                "That would hold without attention. Each token looks at all earlier ones, 16 times as many as before.",
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
        "nanoGPT divides by an A100's peak of 312 TFLOP/s in bf16. Of an H100, the data sheet names two peaks in "
        "bf16: 989, and 1,979 with sparsity. What is the true MFU of the run that reported 104 % on an H100?", {
            "33 %": "The run reached 104 % of 312, which is 324 TFLOP/s. That is a third of 989.",
            "52 %": "That would be right if an H100's peak were twice an A100's. It is three times as high.",
            "16 %": "That divides by 1,979 TFLOP/s, which hold where half of the numbers are zero. Training is dense.",
        }),
}
