"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "five_on_four": (
        "A batch of 5 samples on 4 devices. How many samples does each device get?", {
            "2, 2, 1 and the fourth device none": "Chunk rounds the size up, and cuts until nothing is left.",
            "2, 1, 1, 1": "That would be fair. `torch.tensor_split` does it; `torch.chunk` does not.",
            "an error": "Not even a warning. You would have to look.",
        }),
    "mean_of_means": (
        "Replicas return the mean loss of their chunks, and you average these. When is the gradient still "
        "right?", {
            "with equal chunks": "Then the mean of means is the mean of all.",
            "always": "With chunks of 2, 2 and 1, the lonely sample counts as much as two others together.",
            "never": "If all chunks are equally large, each sample still counts the same.",
        }),
    "first_state_name": (
        "Without a GPU the wrapper only calls the model. Which is the first name in the wrapped model's "
        "state dict then?", {
            "`module.layers.0.weight`":
                "The path begins at the wrapper, whatever the wrapper does in `forward`.",
            "`0.weight`": "A name is a path of attributes, and the list of layers is itself one, `layers`.",
            "`layers.0.weight`":
                "So it would be in the model. But it is the wrapper's state dict that is asked.",
        }),
    "fills_device_0": (
        "This model (its large layer: 256 × 8,000 weights), 512 samples, 4 devices, Adam. What fills most "
        "of device 0?", {
            "outputs":
                "4 million numbers gathered; the loss keeps as many again; and its own quarter of them.",
            "the weights and their gradients":
                "2 million numbers each. Now count what 512 samples make of 8,000 outputs each.",
            "Adam's two tensors per weight":
                "Twice 2 million numbers, on device 0 only. Outputs: 4 million, and more than once.",
        }),
    "threads_by_layer": (
        "Two replicas in two threads, against one after the other. Which layer becomes twice as fast?", {
            "the one that waits for its device": "Waiting needs no lock: both wait at the same time.",
            "both": "The second one's threads have to take turns with the lock. (Without a GIL, both.)",
            "the one in Python": "Only one thread at a time runs Python code, if this Python has a GIL.",
        }),
    "what_replicas_forget": (
        "After one forward pass of 9 samples on 3 devices: what are `model.calls` and `model.seen`?", {
            "0 and [3, 3, 3]":
                "The replicas' counters are gone with them. The list is one list, shared by all.",
            "3 and [3, 3, 3]":
                "The list yes. But `+=` on a number makes a new number, and gives it to the replica.",
            "1 and [9]": "That is what one device would have given you.",
        }),
}
