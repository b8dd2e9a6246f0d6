"""The predictions of this lesson: {key: (question, {option: why})}. The first option holds."""

QUESTIONS = {
    "threads_on_two_cores": (
        "Two cores are free. How long do two threads take, compared with doing the work one after the "
        "other?", {
            "about as long":
                "Only the thread that holds the GIL runs Python code, and the other one waits. So two "
                "threads get what one core gives. A second process has an interpreter of its own, with a "
                "lock of its own.",
            "about half as long": "For that, two threads would have to run Python code at the same moment.",
            "about twice as long":
                "Passing the lock to and fro costs something, but far less than the work itself.",
        }),
    "which_child_sees": (
        "The script sets `SETTING = \"changed later\"`, then starts its children, and the fork server, too. Which "
        "child sees the change?", {
            "only the forked one":
                "A forked child is a copy of the parent's memory. So it has the changed variable, the open "
                "file, torch, and even the locked lock. It does not have the parent's second thread, because "
                "fork copies only the thread that called it. The other children import the script again.",
            "all of them": "A spawned child runs the top of the script again, and finds what is written "
                           "there.",
            "the forked one and the fork server's":
                "The fork server copies itself, not your parent. It has started as an empty Python, so its children "
                "import the script again.",
        }),
    "forked_with_threads": (
        "Both children are forked from a parent that is set to two threads, and set no number themselves. "
        "Which child comes to the end of its product?", {
            "only the one that was forked before the parent computed":
                "This child starts threads of its own. The other child's memory says that the threads exist "
                "already. They do not, because fork copies only one thread. The child hands them work and "
                "waits for ever, without an error, until the script's time limit ends it. So put a time "
                "limit on everything that starts processes.",
            "both": "The memory is copied. But fork does not copy the threads that share the product.",
            "only the one that was forked after the parent had computed":
                "Its memory says that the threads are ready. But fork did not copy the threads themselves.",
        }),
    "spawn_from_notebook": (
        "What will `mp.spawn(hello, nprocs=1)` do in this notebook?", {
            "fail in the child":
                "The child starts, gets the name `hello`, and looks for it in its own `__main__`. A notebook is no "
                "file that a child could import, so this `__main__` is empty. The parent only learns that its "
                "child has ended. (With fork the child would find `hello`, because it would be a copy.)",
            "print a greeting": "For that, the child would need the function's code. It gets only the name.",
            "fail in this notebook, before a process starts":
                "Pickling succeeds, as you have seen: it writes down a name.",
        }),
    "shared_after_spawn": (
        "The child is spawned, not forked. Which of the three change for the parent?", {
            "both tensors":
                "A spawned child is no copy, so the list and the tensors are sent to it. Sending a tensor moves its "
                "memory into shared memory, in place. So parent and child use the same memory, also for the plain "
                "tensor. The list is sent by value: the child has its own. Send a `clone()` where you do not want to "
                "share.",
            "only the shared tensor":
                "This was right for fork. But now the plain tensor is sent, which moves it into shared "
                "memory.",
            "all three": "The list is sent by value, so the child gets a list of its own.",
        }),
    "queue_after_exit": (
        "On Linux, a child puts a tensor into a Queue and ends. Then the parent reads the Queue. What does it "
        "get?", {
            "an error":
                "The note says: ask this process for the memory. But this process is gone. If it ended in "
                "the normal way, it has removed its socket (`FileNotFoundError`). If it was killed, the "
                "socket is still there, but nobody answers (`ConnectionRefusedError`). So the sender has to "
                "stay, as `done.wait(60)` makes it do above, or to send bytes, which need nobody. (With the "
                "strategy `file_system`, which a Mac uses, the memory outlives its sender by a moment. If the "
                "parent reads too late, it gets a `RuntimeError`.)",
            "the tensor": "The note arrives. But the parent must ask the child for the memory, and the child is "
                          "gone.",
            "nothing: the Queue is empty": "The note was sent before the child ended, so it is in the Queue.",
        }),
    "laptop_model": (
        "On the laptop, `model.to('cpu')` copies nothing, and the child returns nothing. How well does the "
        "parent's model read the digits afterwards?", {
            "as well as the child's":
                "Sending the model to the child moved its weights into shared memory, and the child trained "
                "them there. Nobody sent anything back, and nobody had to.",
            "as badly as before":
                "A child's memory is its own, except for shared memory. Sending the model has moved its "
                "weights there.",
        }),
    "mac_after_fork": (
        "On the Mac, too, the parent has computed before it starts its child. Why does the child finish "
        "there?", {
            "macOS spawns its children":
                "A spawned child is no copy. It has no note that threads exist, so it starts its own. With "
                "`--method spawn` you see the same here.",
            "a fork on macOS copies the threads as well":
                "No fork copies threads. And Python does not fork there, unless you ask for it.",
            "the Mac has fewer cores": "Two threads were enough for the hang above.",
        }),
}
