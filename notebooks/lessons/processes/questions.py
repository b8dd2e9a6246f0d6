"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "threads_on_two_cores": (
        "Doing `count` twice takes some time. How much faster are two threads on two cores?", {
            "no faster":
                "Only the thread that holds the interpreter's lock runs Python code; the other one waits "
                "for it.",
            "about twice as fast": "They would be, if two threads could run Python code at the same moment.",
            "they give a wrong result": "Each thread has its own `total`; the results are right.",
        }),
    "which_child_sees": (
        "The script sets `SETTING = \"changed later\"` before it starts its children. Which child sees that?", {
            "only the forked one":
                "It is a copy of the parent at that moment. The others come from a fresh import.",
            "all of them":
                "A spawned child runs the top of the script anew, and finds what is written there.",
            "none": "A forked child is a copy of the parent as it is now, changes included.",
        }),
    "forked_with_threads": (
        "Both children are forked from a parent with two threads; they set none themselves. Which child "
        "comes to the end of its product?", {
            "only the one that was forked before the parent computed":
                "It starts threads of its own. The other one finds noted, in its copy of the memory, that "
                "threads are there already; it gives them work, and waits.",
            "both": "The memory is copied. And the threads that share the product?",
            "only the one that was forked after the parent had computed":
                "What was made ready in the parent is ready in the copy, too. All of it?",
        }),
    "spawn_from_notebook": (
        "What will `mp.spawn(hello, nprocs=1)` do in this notebook?", {
            "fail in the child":
                "The child starts, gets the name `hello`, and finds no such thing in its own `__main__`.",
            "print a greeting": "For that, the child would have to know the function.",
            "fail in this notebook, before a process starts":
                "Pickling succeeds, as you saw: writing down a name is easy.",
        }),
    "shared_after_spawn": (
        "Spawned, not forked: which of the three change for the parent?", {
            "both tensors": "Sending a tensor moves its memory into shared memory, in place.",
            "only the shared tensor":
                "So it was with fork. Now the plain tensor is sent. What does sending do to it?",
            "all three": "The list crosses by value: the child gets a list of its own.",
        }),
    "queue_after_exit": (
        "A child puts a tensor into a Queue and ends. Then the parent reads the Queue. What does it get?", {
            "an error": "The note says: ask this process for the memory. It is gone.",
            "the tensor": "The note arrives. But whom does the parent ask for the memory?",
            "nothing: the Queue is empty": "The note had been sent before the child ended.",
        }),
    "laptop_model": (
        "The laptop: `model.to('cpu')` copies nothing, the child returns nothing. How does the parent's "
        "model do?", {
            "as well as the child's":
                "Sending the model moved its weights into shared memory. The child trained there.",
            "as badly as before":
                "A child's memory is its own. But in which memory do weights lie that were sent?",
        }),
    "mac_after_fork": (
        "The parent has computed there, too. Why does it run on the Mac?", {
            "macOS spawns, unless told otherwise":
                "The child is no copy: it finds no note of threads, and starts its own.",
            "a Mac's fork copies the threads as well": "No fork does. But does that Mac fork at all?",
            "the Mac has fewer cores": "Two threads were enough for the hang above.",
        }),
}
