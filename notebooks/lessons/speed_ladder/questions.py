"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "slowest_part": ("Which part of one epoch of this script takes most of the time?", {
        "testing": "An epoch has five tests of 360 images, and each test decodes its files again: 1,800 "
                   "files, beside 512 for training.",
        "computing gradients": "512 small images go forward and backward. Many more files are decoded "
                               "meanwhile.",
        "decoding the training images": "There are 512 of them. The tests decode more.",
    }),
    "two_ranks": (
        "With two ranks, each computes half of every batch. How fast is the training then, beside the rung below "
        "it, on one rank?", {
            "no faster":
                "Half of a batch takes more than half of the time, because each operator costs something before it "
                "computes anything. Then each step waits until the gradients of both ranks are averaged. And "
                "decoding and testing are not divided: each rank does all of it.",
            "one and a half times as fast":
                "Divide the two times of a step: halving the batch gives no more than that. The averaging is still "
                "to be paid, and each rank decodes, moves and tests all images.",
            "twice as fast":
                "Only if all work were halved, and averaging cost nothing. Look at the step on half a batch.",
        }),
}
