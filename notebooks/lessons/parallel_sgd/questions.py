"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "where_time_goes_respawned": (
        "Four workers each make one pass over 359 tiny images. Where will most of the time go?", {
            "starting the workers":
                "Each is a new Python that imports torch first, and it does so in every epoch.",
            "training": "These are 45 steps each, of a very small network.",
            "waiting at the barrier": "The shards are equal to within one image. Nobody waits for long.",
        }),
    "staying_against_respawned": (
        "How far will its model be from the respawned workers' one, after an epoch?", {
            "the same, up to rounding":
                "The mean of four numbers may be added up in another order. That is all.",
            "it is another model": "Nothing in the arithmetic has changed: only who does it, and where.",
            "a little better":
                "Preparing images once gives the very same numbers as preparing them every time.",
        }),
    "local_and_global": (
        "A worker now trains `local_model`. What happens to `global_model`?", {
            "it changes as well":
                "Both names now lead to the same memory, and so do those of all other workers.",
            "nothing": "It would, had the values been copied. What does `=` do in Python?",
            "an error": "Torch allows it: two parameters may share their memory.",
        }),
    "fourfold_loop": (
        "The fourfold loop alone, with a `pull_down` that copies: what becomes of the model, compared with "
        "one time?", {
            "nothing: it is the same model":
                "Each time begins with a copy of the same global weights, takes the same batches in the "
                "same order, and so three of the four are thrown away.",
            "it is trained four times as much":
                "It would be, if each time began where the one before had ended.",
            "the mean of four different models":
                "They are not different: `batches` shuffles by epoch and rank only.",
        }),
    "every_step_against_ddp": (
        "k = 1 averages weights after every step; DDP averages gradients within every step. How far apart "
        "after five epochs?", {
            "the same, up to rounding":
                "`w` and `v` are sums of multiples of gradients, and the mean of sums is the sum of means. "
                "The ranks' own `v` differ, and their mean is DDP's.",
            "far: each rank has a `v` of its own":
                "They differ, but only their mean enters the averaged weights.",
            "close, until the momentum has drifted":
                "Nothing drifts: the mean of the ranks' `v` is DDP's `v` at every step.",
        }),
    "ddp_rate_for_hogwild": (
        "With which learning rate does DDP come to the loss of Hogwild with 0.05, after one epoch?", {
            "0.2, four times":
                "One step with the mean of four gradients and four times the rate is the sum of four steps.",
            "0.0125, a quarter": "That makes its steps smaller still.",
            "0.05, the same": "You have just seen that it does not.",
        }),
    "sorted_labels": (
        "Each worker sees only three or four of the ten digits, and they average once per epoch. Then the "
        "averaged model is …", {
            "better than each worker's own, worse than with mixed shards":
                "Each own model forgets the digits that it does not see; the mean brings some of that back,"
                " not all.",
            "useless": "No worker knows all the digits, but the average holds something of each.",
            "as good as with mixed shards": "It would be, if they averaged at every step.",
        }),
}
