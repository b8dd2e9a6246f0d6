"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "one_more_call": (
        "The same line runs three times in a row. Which time tells you what *one more* call would cost?", {
            "the later ones": "Only the first call imports modules, which then stay in the process. So call once "
                              "before you measure: this is called *warming up*. On a GPU, a first call also loads "
                              "the programs that run there.",
            "the first": "It includes work that happens only once in a process, such as imports.",
            "the mean of the three": "The first time is far from the others, so it spoils the mean.",
        }),
    "item_in_each_step": (
        "Python takes 4 ms to order a step, and the thread 4 ms to run it. How long does a step take if Python waits "
        "for the result of each step, and how long if it waits only for the last?", {
            "8 ms, and about 4 ms": "If Python waits, it orders the next step only when the thread has run this one: "
                                    "a step takes both times together. If it does not wait, it orders the next step "
                                    "meanwhile, and a step takes as long as the slower of the two. So keep the losses "
                                    "as tensors, `losses.append(loss.detach())`, and look at them every hundredth "
                                    "step.",
            "about 4 ms both times": "The result of a step is there only after the thread has run it. Until then "
                                     "Python does not order the next step.",
            "8 ms both times": "`submit` returns at once. So without waiting, Python orders the next step while the "
                               "thread runs this one.",
        }),
    "self_cpu_of_linear": (
        "All the multiplying of forward happens between call and return of `aten::linear`. Where does "
        "`aten::linear` stand in a table that is sorted by Self CPU?", {
            "below the first five rows": "It only calls `aten::addmm`, which multiplies in its own code. "
                                         "Self CPU leaves out what an operator calls.",
            "in the first row": "Its *CPU total* is large, because it contains `aten::addmm`. In its own "
                                "code it does little.",
            "beside `aten::addmm`": "Their *CPU totals* are nearly the same. Self CPU leaves out what an "
                                    "operator calls.",
        }),
    "file_of_rank_0": (
        "Now rank 1 takes 60 ms longer to load each batch. You open the file of rank 0 alone, as torch wrote it. What "
        "is longer in it than before?", {
            "`gloo:all_reduce`": "An all-reduce ends in no rank before all have joined it, so rank 0's lasts until "
                                 "rank 1 comes. Nothing in rank 0's file says that this is waiting, and people "
                                 "conclude that the network is slow. Only rank 1's file tells when rank 1 joined. In "
                                 "the picture of both, the waiting is dark grey. (The numbers count a "
                                 "`gloo:all_reduce` as communication.)",
            "`load a batch`": "Rank 0 loads as before. The long loading is in the file of rank 1.",
            "nothing: it only begins later": "Rank 0 begins its all-reduce when its own gradient is there, which is as "
                                             "early as before. Then it has to stay in it until rank 1 has joined.",
        }),
    "which_allocates": (
        "`rows` is 256 rows of 64 numbers, 64 KiB. Which of these operators allocates most?", {
            "aten::sub": "It makes 256 × 256 × 64 numbers: the difference of each row from each row.",
            "aten::sqrt": "It makes 256 × 256 numbers, one for each pair of rows.",
            "aten::randn": "It makes the rows themselves: 64 KiB.",
        }),
    "step_of_profiler": (
        "The schedule is the one from above. At which step does the profiler believe it is when this has "
        "trained on eight batches?", {
            "1": "It was told once, after the loop, that a step is over. All eight batches were its step 0, and the "
                 "plan records neither step 0 nor step 1. Called once an *epoch*, `step()` makes a step as long as an "
                 "epoch, and a training of one epoch writes nothing.",
            "0": "The call after the loop counts, too.",
            "8": "That needs a call of `step()` for each batch.",
        }),
}
