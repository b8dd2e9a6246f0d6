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
    "one_piece": (
        "Llama 3 405B on 8,192 GPUs has 16 stages, and each pipeline does 32 micro-batches. With 8 pieces a "
        "stage, the planner counts a bubble of 15/8 micro-batches. How much longer does it think a step "
        "takes with one piece a stage?", {
            "about 1.4 times as long":
                "The bubble is then 15 micro-batches. (32 + 15) / (32 + 15/8) is 1.39. It sends fewer "
                "messages, which saves a little.",
            "hardly longer":
                "That holds where there are many more micro-batches than stages. Here the bubble grows from "
                "2 to 15 micro-batches, and there are only 32.",
            "8 times as long":
                "Only the bubble grows 8 times. The 32 micro-batches themselves take as long as before.",
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
