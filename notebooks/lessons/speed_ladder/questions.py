"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "slowest_part": (
        "Which part of one epoch of this script takes most of the time?", {
            "testing":
                "Four tests in an epoch and one after it, of 360 images each: 1,800 images, each decoded "
                "anew.",
            "computing gradients":
                "512 small images, forward and backward. Look at how many files are decoded meanwhile.",
            "decoding the training images": "They are 512. How many images do the tests decode?",
        }),
    "on_top_compiled": (
        "On the way up two workers decoded. On the top they load decoded images. How much longer does a "
        "training take?", {
            "two or three times":
                "Fetching a batch from a tensor takes microseconds; workers have to be started, and each "
                "batch goes through a queue.",
            "hardly":
                "How many images does a worker decode now? And what does it cost to start one, twice in "
                "every epoch?",
            "ten times":
                "Starting workers costs something, but not as much as all of the decoding that the lower "
                "rungs did.",
        }),
}
