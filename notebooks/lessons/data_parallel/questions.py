"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "five_on_four": (
        "A batch of 5 samples on 4 devices. How many samples does each device get?", {
            "2, 2, 1, and the fourth device gets none":
                "Chunks of 1 would be five, one more than there are devices. So the size is 5 / 4, rounded up: "
                "each device gets 2 samples until none are left.",
            "2, 1, 1, 1": "That would be fair, and `torch.tensor_split` does it. `torch.chunk` does not.",
            "none: torch raises an error":
                "There is not even a warning. You would have to look at the sizes.",
        }),
    "mean_of_means": (
        "Each replica returns the mean loss of its chunk, and you take the mean of these. When is the "
        "gradient still right?", {
            "if all chunks are equally large":
                "Then every sample counts as much as every other one. The last batch of an epoch may not be "
                "so, and nothing warns. If the loss ignores labels (`ignore_index`), the chunks "
                "must also have equally many labels that count.",
            "always":
                "With chunks of 2, 2 and 1, each chunk counts a third. The single sample of the last one "
                "then counts as much as two others together.",
            "never": "If all chunks are equally large, the mean of their means is the mean of all samples.",
        }),
    "first_state_name": (
        "Without a GPU the wrapper only calls the model. What is the first name in the wrapped model's state "
        "dict then?", {
            "`module.layers.0.weight`":
                "A name is the path of attributes that leads to the weight. It begins at the wrapper, which "
                "keeps the model as `module`, whatever the wrapper does in `forward`.",
            "`0.weight`": "A name is a path of attributes, and the model keeps its layers in an attribute, `layers`.",
            "`layers.0.weight`": "That is the name in the model. We asked the wrapper for its state dict.",
        }),
    "fills_device_0": (
        "The large layer of this model has 256 × 8,000 weights. 512 samples, 4 devices, Adam. What takes "
        "most of the memory of device 0?", {
            "outputs":
                "Device 0 gathers 512 × 8,000 outputs, about 4 million numbers. The loss keeps as many "
                "again. And device 0 has the outputs of its own chunk.",
            "the weights and their gradients":
                "Together about 4 million numbers. The gathered outputs alone are as many, and the loss keeps as "
                "many again.",
            "Adam's two tensors per weight":
                "These are twice 2 million numbers. The outputs are 4 million, and device 0 has them more "
                "than once.",
        }),
    "four_against_one": (
        "Four devices, PCIe 4, without NCCL: the model is copied to one device after another. One device "
        "alone needs 16 ms for the step, and one copy of the model takes 4 ms. How fast are four devices, "
        "compared with one?", {
            "slower than one":
                "Sending the weights to three devices and their gradients back takes six copies, 24 ms. "
                "That is more than the whole step takes on one device. With NCCL, as on Linux, it takes the time "
                "of two copies, and four devices are 1.2 times as fast as one.",
            "about three times as fast":
                "The computing becomes four times as fast and takes 4 ms. But sending weights and gradients "
                "takes six copies of 4 ms.",
            "about as fast":
                "Four devices save 12 of the 16 ms of computing. But six copies, 24 ms, come on top.",
        }),
    "what_replicas_forget": (
        "One forward pass of 9 samples on 3 devices. What are `model.calls` and `model.seen` after it?", {
            "0 and [3, 3, 3]":
                "`self.calls += 1` assigns a new number to the *replica*, which is thrown away. `self.seen` "
                "is one list, which the model and all replicas share, and `append` changes it in place. Of "
                "everything that `forward` touches, ask: is it assigned anew, or changed in place? And who "
                "shares it?",
            "3 and [3, 3, 3]":
                "The list is right. But `+=` on a number makes a new number, and gives it to the replica.",
            "1 and [9]":
                "That is what one device would have given you. Here `forward` runs once per replica.",
        }),
}
