"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "hello_lines": (
        "We launch this script with `nprocs=4`. How many lines will appear?", {
            "eight": "Four processes run side by side. Each of them runs the whole script from its first line, and "
                     "prints both lines.",
            "five": "For this, one process would have to run the beginning for all. But each rank runs the whole "
                    "script.",
            "two": "There is only one file, but every rank runs all of it.",
        }),
    "counter_of_ranks": (
        "`counter` is 0 in this notebook. Two ranks add 1 to it. What do they return, and what is it here "
        "afterwards?", {
            "[1, 1], and here 0": "`counter` travelled with the function, as a copy. Each rank has memory of "
                                  "its own, and changed its own copy. Neither the notebook nor the other rank saw "
                                  "that.",
            "[1, 2], and here 2": "Two threads would do that, because threads share their variables. Ranks "
                                  "do not.",
            "[1, 1], and here 1": "For this, a rank would have to write into this notebook's memory. It "
                                  "cannot.",
        }),
    "second_all_reduce": (
        "The three ranks call `all_reduce` a second time. What does rank 1 hold then?", {
            "90": "After the first call each rank holds 30, because `all_reduce` works in place. The second "
                  "call adds up three numbers of 30, and every rank gets 90.",
            "30": "Each rank holds 30 after the first call. The second call then adds up three of these.",
            "40": "This would be 10 + 30. But rank 1 no longer has its 10: `all_reduce` put the sum in its "
                  "place.",
        }),
    "steps_of_two_ranks": (
        "One rank needed 23 steps for all 1,437 images, with 64 images in a step. How many steps does each "
        "of two ranks make in an epoch, if the two of them together take 64 images in a step?", {
            "23": "Each rank has half of the images. In each step it takes half as many, 32. So the number "
                  "of steps stays the same.",
            "12": "This would be right if each rank took 64 images in a step. But the script divides the "
                  "64, too.",
            "45": "This would be right if each rank trained on all the images. But the sampler gives it "
                  "half of them.",
        }),
    "digits_after_averaging": (
        "Rank 0 has seen only images of the digits 0 to 4. Which digits does it recognise, if the ranks "
        "average their gradients?", {
            "all ten": "Half of each averaged gradient comes from rank 1's images. So an image that only "
                       "rank 1 has seen changes rank 0's weights, too.",
            "0 to 4": "Rank 0's own images show only these five digits. But rank 1's gradients change rank 0's "
                      "weights, too.",
            "none": "The average keeps half of each rank's gradient. So each step learns from the images of both "
                    "ranks.",
        }),
}
