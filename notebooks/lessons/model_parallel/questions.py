"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "idle_of_four": (
        "Four stages, four micro-batches: which share of the time does a rank stand idle?", {
            "3/7": "Each rank works for 4 · 3 of (4 + 3) · 3 units: three sevenths are idle.",
            "1/4": "Each rank works for 4 units of 3. How many does the whole take?",
            "3/4": "That is with a single micro-batch, as in the picture.",
        }),
    "two_layers_all_reduces": (
        "Each rank computes a part of `up` and of `down`, forward and backward. How many all-reduces does "
        "the net need?", {
            "two": "One in forward, for the sum; one in backward, for the input's gradient.",
            "one": "Forward has one. In backward, all ranks used the input: what about its gradient?",
            "four": "Between `up` and `down` nothing has to be sent, in neither direction.",
        }),
}
