"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "one_more_call": (
        "The same line, three times. Which time tells you what *one more* call would cost?", {
            "the later ones": "The first call does things that happen only once in a process.",
            "the first": "Look below at what else happened in it.",
            "the mean of the three": "A mean of one odd number and two good ones is odd, too.",
        }),
    "self_cpu_of_linear": (
        "`aten::linear` calls `aten::addmm`, which multiplies. For which of the two is Self CPU large?", {
            "aten::addmm": "The arithmetic is in its own code. `linear` looks at shapes, and passes them on.",
            "aten::linear": "Its total is large: it holds that of addmm. What does linear do itself?",
            "both the same": "That holds for their totals, nearly.",
        }),
    "late_rank_waits": (
        "Now rank 1 takes 60 ms longer to load each batch. Which rank's trace shows long waiting?", {
            "rank 0, the quick one":
                "It is ready early, and has to wait in the all-reduce until rank 1 comes.",
            "rank 1, the slow one": "It comes last to every all-reduce. Everybody else is there already.",
            "both": "Nobody waits for the one that is early.",
        }),
    "which_allocates": (
        "256 rows of 64 numbers are 64 KiB. Which of these operators allocates most?", {
            "aten::sub": "It makes 256 × 256 × 64 numbers: a whole row for each pair of rows.",
            "aten::sqrt": "It makes 256 × 256 numbers, one for each pair.",
            "aten::randn": "That makes the rows, the 64 KiB. (It leaves the allocating to aten::empty.)",
        }),
    "step_of_profiler": (
        "The schedule is the one from above. At which step does the profiler believe it is, after eight "
        "batches?", {
            "1":
                "All eight batches were one long step to it: number 0. And what does the plan say of steps "
                "0 and 1?",
            "0": "It was told once that a step is over: after the loop.",
            "8": "It would be, with a call for each batch.",
        }),
}
