"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "hello_lines": (
        "We launch this script with `nprocs=4`. How many lines will appear?", {
            "four": "Four processes each run the whole script, and each prints its own line.",
            "one": "There is one script, but every rank runs all of it.",
            "as many as this machine has cores":
                "Ranks are processes; the system shares the cores among them.",
        }),
    "counter_of_ranks": (
        "`counter` is 0 in this notebook. Two ranks add 1 to it. What do they return, and what is it here "
        "afterwards?", {
            "[1, 1], and here 0": "Each rank got a copy together with the function, and changed its copy.",
            "[1, 2], and here 2": "That is what threads would do: one counter for all.",
            "[1, 1], and here 1": "That would need one of the ranks to write into this notebook's memory.",
        }),
    "second_all_reduce": (
        "The three ranks call `all_reduce` a second time. What does rank 1 hold then?", {
            "90": "After the first time each rank holds 30, and 30 + 30 + 30 is 90.",
            "30": "That is what each of them holds after the first time; and now they add up three of these.",
            "40": "10 and 30. But the 10 is gone: `all_reduce` works in place.",
        }),
    "steps_of_two_ranks": (
        "64 images in a step: one rank needs 23 steps for all 1,437. How many steps does each of two ranks "
        "make in an epoch?", {
            "23": "Half of the images, and half as many in each step: 32.",
            "12": "It would, if each rank took 64 images in a step. But the script shares these 64 out, too.",
            "45": "It would, if each rank trained on all the images, 32 in a step.",
        }),
    "digits_after_averaging": (
        "With averaging: which digits does rank 0 recognise, which has seen none but 0 to 4?", {
            "all ten": "Half of each averaged gradient comes from rank 1's images.",
            "0 to 4": "Its own images say nothing of the others. But are these all that changed its weights?",
            "none": "Averaging halves what each rank contributes; it does not wipe it out.",
        }),
}
