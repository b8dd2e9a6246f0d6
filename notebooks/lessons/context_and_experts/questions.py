"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "cut_sends_least": (
        "Four ranks, eight heads. Which of the three sends least in forward?", {
            "the exchange of tokens for heads":
                "A rank keeps a quarter of everything that it has, and sends three quarters of q, k, v and "
                "the output: 4 · 3/4 = 3 blocks. In the other two, k and v go to three other ranks: 2 · 3 = "
                "6 blocks.",
            "the ring":
                "A rank passes on k and v three times: 6 blocks. The ring saves memory, and not bytes.",
            "gathering keys and values":
                "Each rank's k and v must reach three others: 6 blocks, as in the ring.",
        }),
    "cut_finishes_last": (
        "The sequence is cut into four pieces, one after the other. Which rank computes the most pairs?", {
            "the last": "Its tokens look at almost all others. The tokens of rank 0 look only at each other.",
            "rank 0": "Its tokens come first, so there is little that they may look at.",
            "all compute as many":
                "They have equally many queries. But a late query looks at more keys than an early one.",
        }),
    "local_positions": (
        "A contiguous cut, and each rank counts its positions from 0. Whose output is right?", {
            "rank 0's":
                "Its tokens really begin at 0. In all other ranks the distance to the keys of earlier ranks "
                "is wrong, because these keys were turned as if they stood at 0, 1, 2 … too.",
            "all: only distances matter":
                "Distances within a block are right. Between two blocks they are not: both count from 0.",
            "nobody's": "One rank's tokens really begin at 0.",
        }),
    "expert_gradient": (
        "Each rank's loss is a mean over its own tokens. DDP averages the router's gradient over N ranks. "
        "Nobody touches an expert's gradient. It is …", {
            "N times too large":
                "Rows of all ranks go through the expert, so backward adds up the gradients of all N "
                "losses. The training's loss is their mean, so this sum must be divided by N.",
            "right": "It has the rows of all ranks, so nothing is missing. But it is the gradient of the sum "
                     "of N losses, and the training's loss is their mean.",
            "N times too small": "Nothing was divided: each rank's loss counts in full.",
        }),
    "skipped_block": (
        "The launch says where each of the four ranks waits. Which rank went wrong?", {
            "the one that waits elsewhere than the others":
                "It has left the ring early, because it skipped a block and with it the passing on. The "
                "others wait for it.",
            "the one with the most work": "It waits like its neighbours, for a block that does not come.",
            "nobody: the network is slow": "All of them wait for ever: for one that has left the ring.",
        }),
}
