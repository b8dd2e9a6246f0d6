"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "new_lesson_sum": ("Two ranks add up their numbers, 0 and 1. What does rank 0 print?", {
        "1": "`all_reduce` gives every rank the sum of what all ranks gave.",
        "0": "Rank 0 gave 0, but it gets the sum.",
    }),
}
