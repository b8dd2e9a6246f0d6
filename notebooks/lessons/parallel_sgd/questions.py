"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "where_time_goes_respawned": (
        "Four workers each make one pass over 359 tiny images. Where does most of the time go?", {
            "starting the workers": "Each worker is a new Python that imports torch first, in every epoch.",
            "training": "Each worker makes 45 steps of a very small network.",
            "waiting at the barrier": "The shards are equal to within one image, so no worker waits for "
                                      "long.",
        }),
    "staying_against_respawned": (
        "How far is the model of ranks that stay from the model of respawned workers, after one epoch?", {
            "the same, up to rounding": "The arithmetic is the same. Only the order in which four numbers "
                                        "are added may differ.",
            "it is another model": "Only the processes changed. The batches, the steps and the mean are the "
                                   "same.",
            "a little better": "Images that are prepared once have the same numbers as images that are "
                               "prepared every time.",
        }),
    "local_and_global": ("A worker now trains `local_model`. What happens to `global_model`?", {
        "it changes as well": "`=` on `.data` copies nothing: both parameters now lead to the same memory.",
        "nothing": "This would be true if the values had been copied. `=` on `.data` copies nothing.",
        "an error": "Torch allows two parameters to share their memory.",
    }),
    "fourfold_loop": (
        "Only the fourfold loop, with a `pull_down` that copies: what becomes of the model, compared with a "
        "single loop?", {
            "nothing: it is the same model": "Each time begins with the same global weights and takes the "
                                             "same batches in the same order, so each time ends with the "
                                             "same weights.",
            "it is trained four times as much": "Each time begins again with the global weights, so earlier "
                                                "passes are lost.",
            "the mean of four different models": "They do not differ: the batches depend on the epoch and "
                                                 "the rank only.",
        }),
    "every_step_against_ddp": (
        "k = 1 averages weights after every step; DDP averages gradients within every step. How far apart "
        "are the weights after five epochs?", {
            "the same, up to rounding": "`w` and `v` are sums of multiples of gradients, and the mean of "
                                        "sums is the sum of means. So the mean of the ranks' `v` is DDP's "
                                        "`v`.",
            "far: each rank has a `v` of its own": "The `v` differ, but only their mean enters the averaged "
                                                   "weights.",
            "close, until the momentum has drifted": "The mean of the ranks' `v` is DDP's `v` at every step.",
        }),
    "ddp_rate_for_hogwild": (
        "With which learning rate does DDP reach the loss of Hogwild with 0.05, after one epoch?", {
            "0.2, four times": "One step with the mean of four gradients and four times the rate is as long "
                               "as four steps.",
            "0.0125, a quarter": "This makes DDP's steps even smaller.",
            "0.05, the same": "With the same rate, DDP's step is as long as one of Hogwild's four.",
        }),
    "sorted_labels": (
        "Each worker sees only three or four of the ten digits, and they average once per epoch. What is the "
        "averaged model like?", {
            "better than each worker's own, worse than with mixed shards":
                "Each worker's own model forgets the digits that it does not see. The mean brings some of "
                "that back, but not all.",
            "useless": "No worker knows all the digits, but the average holds something of each.",
            "as good as with mixed shards": "This is true if they average at every step.",
        }),
}
