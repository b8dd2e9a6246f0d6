"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "slowest_part": ("Which part of one epoch of this script takes most of the time?", {
        "testing": "An epoch has five tests of 360 images, and each test decodes its files again.",
        "computing gradients": "512 small images go forward and backward. Many more files are decoded "
                               "meanwhile.",
        "decoding the training images": "There are 512 of them. The tests decode more.",
    }),
    "workers_on_top": (
        "On the way up, two workers decoded files. On the top, they hand over images that are decoded "
        "already. How much longer does a training take with them?", {
            "two or three times":
                "Taking a batch from a tensor costs microseconds. Workers have to be started twice in every "
                "epoch, and each batch goes through a queue.",
            "hardly longer": "The workers have nothing to decode any more, but starting them costs as much "
                             "as before.",
            "ten times": "Starting workers costs something, but much less than all the decoding of the lower "
                         "rungs.",
        }),
}
