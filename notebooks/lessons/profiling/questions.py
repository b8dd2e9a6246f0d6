"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "one_more_call": (
        "The same line runs three times in a row. Which time tells you what *one more* call would cost?", {
            "the later ones": "Only the first call imports modules and prepares things that stay in the "
                              "process.",
            "the first": "It includes work that happens only once in a process, such as imports.",
            "the mean of the three": "The first time is far from the others, so it spoils the mean.",
        }),
    "item_in_each_step": (
        "Python takes 4 ms to order a step, and the thread 4 ms to run it. How long does a step take if Python waits "
        "for the result of each step, and how long if it waits only for the last?", {
            "8 ms, and about 4 ms": "If Python waits, it orders the next step only when the thread has run this one. "
                                    "If it does not wait, it orders the next step while the thread runs this one.",
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
    "late_rank_waits": (
        "Now rank 1 takes 60 ms longer to load each batch. Which rank's trace shows long waiting?", {
            "rank 0, the quick one": "It is ready early and waits in the all-reduce until rank 1 comes.",
            "rank 1, the slow one": "It comes last to every all-reduce, so rank 0 is there already.",
            "both": "Rank 1 never waits, because rank 0 is always there before it.",
        }),
    "which_allocates": (
        "`rows` is 256 rows of 64 numbers, 64 KiB. Which of these operators allocates most?", {
            "aten::sub": "It makes 256 × 256 × 64 numbers: the difference of each row from each row.",
            "aten::sqrt": "It makes 256 × 256 numbers, one for each pair of rows.",
            "aten::randn": "It makes the rows themselves: 64 KiB.",
        }),
    "step_of_profiler": (
        "The schedule is the one from above. At which step does the profiler believe it is after eight "
        "batches?", {
            "1": "It was told once, after the loop, that a step is over. All eight batches were its step 0, "
                 "and the plan records neither step 0 nor step 1.",
            "0": "There is one call of `step()`, after the loop, so the profiler has left step 0.",
            "8": "That needs a call of `step()` for each batch.",
        }),
}
