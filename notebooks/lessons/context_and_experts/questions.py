"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "cut_sends_least": (
        "Four ranks, eight heads. Which of the three sends least in forward?", {
            "the exchange of tokens for heads":
                "A rank keeps a quarter of everything that it has, and sends three quarters of q, k, v and "
                "the output: 4 · 3/4 = 3 blocks. In the other two, k and v go to three other ranks: 2 · 3 = "
                "6 blocks. In backward the ring sends k and v three times more, and their gradients four times: "
                "14 blocks.",
            "the ring":
                "A rank passes on k and v three times: 6 blocks. The ring saves memory, and not bytes.",
            "gathering keys and values":
                "Each rank's k and v must reach three others: 6 blocks, as in the ring.",
        }),
    "work_of_the_last": (
        "Four ranks get one piece of the sequence each, one after the other. How many pairs does the last rank "
        "compute, compared with the mean of all ranks?", {
            "almost twice as many":
                "On average its queries look at 7/8 of the text, and all ranks' queries at a half of it: 7/8 ÷ 1/2 = "
                "1.75. Rank 0 computes a quarter of the mean.",
            "four times as many":
                "Its queries have the most keys. But ranks 1 and 2 have many, too: the ranks compute about 1, 3, 5 and "
                "7 sixteenths of all pairs.",
            "as many: the pieces are equally long":
                "They have equally many queries. But a late query looks at more keys than an early one.",
        }),
    "local_positions": (
        "A contiguous cut, and each rank counts its positions from 0. Whose output is right?", {
            "rank 0's":
                "Its tokens really begin at 0, and it looks at no other rank's keys. In all other ranks the distance "
                "to the keys of earlier ranks is wrong, because these keys were turned as if they stood at 0, 1, 2 … "
                "too. A test of rank 0 alone finds nothing: compare every rank with one process.",
            "all: only distances matter":
                "Distances within a block are right. Between two blocks they are not: both count from 0.",
            "nobody's": "One rank's tokens really begin at 0.",
        }),
    "expert_gradient": (
        "Each rank's loss is a mean over its own tokens. DDP averages the router's gradient over N ranks. "
        "Nobody touches an expert's gradient. It is …", {
            "N times too large":
                "Rows of all ranks go through the expert, so backward adds up the gradients of all N "
                "losses. The training's loss is their mean, so this sum must be divided by N, as `train` does below. "
                "AdamW hides a constant factor, so its loss does not show the error. The steps of SGD do, and so does "
                "clipping (lesson 10).",
            "right": "It has the rows of all ranks, so nothing is missing. But it is the gradient of the sum "
                     "of N losses, and the training's loss is their mean.",
            "N times too small": "Nothing was divided: each rank's loss counts in full.",
        }),
    "skipped_block": (
        "The contiguous cut, and their function. With how many ranks does it hang?", {
            "four hang, two do not":
                "Rank 0 needs only its own block, so it passes on once and leaves. With two ranks once is enough. With "
                "four, the others wait for the blocks that rank 0 has not passed on. The launch shows it: rank 0 waits "
                "elsewhere than they do. Try a ring with more than two ranks.",
            "two and four": "What does each rank pass on, if there are two? Once is enough, and rank 0 does it.",
            "two hang, four do not": "Rank 0 passes on once. With more ranks, each must pass on more often.",
        }),
}
