"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "staying_against_respawned": (
        "How will the model of the ranks that stay compare with the respawned workers' model, after an "
        "epoch?", {
            "the same, up to rounding":
                "The batches are the same, and so is the arithmetic. Only the numbers of each mean may be "
                "added in another order.",
            "it is another model": "The arithmetic has not changed: only who does it, and where.",
            "a little better": "Images that are prepared once have the same numbers as images prepared each "
                               "time.",
        }),
    "where_time_goes_respawned": (
        "Two spawned workers each make one pass over about 718 tiny images. Where does most of the epoch's "
        "time go?", {
            "starting the workers":
                "The second clock runs from the moment when both workers have started until both have "
                "trained. So the first time minus the second is mostly the start and the end of two Pythons. "
                "Each has to import torch first, and this happens in every epoch. The second and third time "
                "are short, and vary from run to run: compare them with the first only.",
            "training": "Each worker makes only 90 steps, with a very small network.",
            "waiting at the barrier": "The shards are equal to within one image, so nobody waits for long.",
        }),
    "local_and_global": (
        "A worker now trains `local_model`. What happens to `global_model`?", {
            "it changes as well":
                "Nothing was copied. Both tensors now use the same memory, and so do those of all other "
                "workers. The program sends the models to the workers that it spawns. On the CPU, sending "
                "moves them into memory that the processes share (lesson 01). So this is the program's first "
                "bug.",
            "nothing": "This would be right if the values had been copied. But `=` on `.data` copies "
                       "nothing.",
            "an error": "Torch allows it: two parameters may share their memory.",
        }),
    "fourfold_loop": (
        "Take this loop with the first `pull_down` of the lesson, which calls `load_state_dict`. What "
        "becomes of the model, compared with one pass?", {
            "nothing: it is the same model":
                "Each of the four times begins with a copy of the same global weights, and takes the same "
                "batches in the same order. So the results of three times are thrown away. With shared "
                "memory, `pull_down` has nothing to reset, and all passes count: twelve instead of three.",
            "it is trained four times as much":
                "This would be right if each time began where the last one ended. But `pull_down` resets the "
                "local models.",
            "the mean of four different models":
                "The four are not different: the batches are shuffled by epoch and rank, and by nothing "
                "else.",
        }),
    "every_step_against_ddp": (
        "Local SGD with k = 1 averages weights after every step. DDP averages gradients within every step. "
        "How far apart are they after five epochs?", {
            "the same, up to rounding":
                "All ranks begin each step at the same `w`, so their gradients are those that DDP averages. "
                "`v` and `w` are sums of gradients with fixed factors, and the mean of sums is the sum of "
                "means. The ranks' `v` differ, but their mean is DDP's `v` at every step. With `k` = 8 the "
                "gradients are taken at weights that differ.",
            "far: each rank has a `v` of its own":
                "The ranks' `v` differ. But only their mean enters the averaged weights.",
            "close, until the momentum has drifted":
                "Nothing drifts: the mean of the ranks' `v` is DDP's `v` at every step.",
        }),
    "ddp_rate_for_hogwild": (
        "Hogwild's four steps have a rate of 0.05. With which rate does DDP's one step go as far?", {
            "0.2, four times":
                "The mean of four gradients, times 0.2, is their sum times 0.05. In the run, DDP with 0.2 "
                "comes closest to Hogwild's loss after an epoch. So Hogwild led because it went further. "
                "There is a limit: 0.8 is worse than 0.2.",
            "0.0125, a quarter": "Then DDP's step is a sixteenth as long as the four steps of Hogwild.",
            "0.05, the same": "Then DDP's step, along the mean of four gradients, is a quarter as long as the "
                              "four steps along each of them.",
        }),
    "sorted_labels": (
        "Each worker sees only three or four of the ten digits, and they average once per epoch. What does "
        "the averaged model do?", {
            "better than each worker's own, worse than with mixed shards":
                "Each worker's model forgets the digits that it does not see. The mean brings some of that "
                "back, but not all. If they average at every step (k = 1), the skew does no harm here, "
                "because every step follows the mean gradient of all four workers, who together see all the "
                "digits.",
            "it is useless": "No worker knows all the digits. But all begin an epoch at the same weights, "
                             "and the average keeps something of what each has learned since.",
            "as good as with mixed shards": "This is right for k = 1. Over a whole epoch the models drift "
                                            "apart.",
        }),
    "outer_step_of_one": (
        "An outer learning rate of 1 and no outer momentum: what does `outer_step` do?", {
            "it gives every rank the mean of all ranks' weights":
                "`last` minus the mean of `last - mine` is the mean of `mine`. So with this rate and no outer "
                "momentum, DiLoCo is plain averaging: local SGD, if the inner optimizer is SGD.",
            "it doubles each rank's own change":
                "The outer optimizer starts from `last`, where the ranks agreed, and not from where they are "
                "now.",
            "nothing: every rank keeps its weights": "At the end of `outer_step`, all ranks copy `agreed`.",
        }),
}
