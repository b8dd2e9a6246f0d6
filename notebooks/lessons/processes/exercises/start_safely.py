"""A child that is a copy of a parent which has computed with threads may wait for them for ever."""

import functools
import os
from pathlib import Path

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.in_rank import scratch
from helpers.exercises.mistakes import mistake
from lessons.processes.exercises.trouble import without

#: A forked child finds it filled, as torch's bookkeeping of threads, and a spawned child finds it empty.
computed = []


def multiply(note, parent):
    """The learner's `work`, in any process: multiply, and write into the file `note` that it is done.

    Where the product would wait for ever, write why instead.
    """
    threads = torch.get_num_threads()
    if os.getpid() == parent:
        note.write_text("`work` ran in the parent's own process")
    elif computed and threads > 1:
        note.write_text("the child waits for ever: it is a copy of a parent that has computed, and wants "
                        f"{threads} threads, which only the parent has")
    else:
        torch.ones(512, 512) @ torch.ones(512, 512)
        note.write_text("done")


def trouble_with(process, note):
    """In words, what is wrong with what the learner's function has returned, or left; "" if nothing is."""
    if not hasattr(process, "exitcode"):
        return f"your function returned {kind_of(process)}"
    if process.pid is None:
        return f"your function returned {kind_of(process)} that was never started"
    process.join()
    words = note.read_text() if note.exists() else ""
    if not words:
        return f"the process ended, with exit code {process.exitcode}, before `work` did"
    if words != "done":
        return words
    threads = torch.get_num_threads()
    if threads == 1:
        return "the parent now computes with 1 thread"
    if threads != 2:
        return f"the parent now computes with {threads} threads"
    return ""


class StartSafely(Exercise):
    title = "Start a child that finishes"
    task = ("Your function is called in a parent that has computed with two threads. `work()` multiplies "
            "two matrices of 512 × 512, as above. Start it in a process of its own in which it comes to its "
            "end, and return that process, as `Process(target=work)` makes one. Afterwards the parent still has "
            "its two threads.")
    hints = (
        "A child hangs if it is a copy of a parent that has computed, and uses several threads. Change "
        "one of the two.",
        "`mp.get_context(\"spawn\").Process(target=work)` makes a process that is no copy. Or fork, "
        "and let the child call `torch.set_num_threads(1)` before `work()`.",
    )
    explanation = ("A spawned child is no copy: it starts threads of its own, and has to import torch. A "
                   "forked child is cheaper, and must set one thread before it computes, as a DataLoader's "
                   "worker does.")
    why = ("this hang has no error and no output, and it shows on some machines only. A library that forks "
           "for you can cause it, too. From Python 3.12 on, `python -W default` warns of such a fork.")

    timeout = 40
    slow = True
    runs_our_answer = False  # the answer would import torch once more, for nothing

    def answer(work):
        import torch.multiprocessing as mp

        process = mp.get_context("spawn").Process(target=work)      #: process
        process.start()                                             #: start
        return process                                              #: give

    def observe(start_safely, case):
        torch.set_num_threads(2)
        torch.ones(512, 512) @ torch.ones(512, 512)
        computed.append(True)
        with scratch() as folder:
            note = Path(folder, "note")
            process = start_safely(functools.partial(multiply, note, os.getpid()))
            return {"trouble": trouble_with(process, note)}

    # ---------------------------------------------------------------------------------------- what must hold

    to_its_end = "`work()` comes to its end in a process of its own"
    return_it = "`Process(target=work)` makes a process, and `start()` starts it. Return it; a thread is no process"
    no_call = "write `target=work`, without parentheses"
    a_copy = "is the child a copy of the parent? And how many threads does it use?"
    which_process = "in which process do you set the number of threads?"

    rules = (
        without("your function returned", "the process that it has started", return_it),
        without("the process ended", to_its_end, "what is its target, and does something end it early?"),
        without("`work` ran", to_its_end, no_call),
        without("waits for ever", to_its_end, a_copy),
        without("now computes with", "its two threads, as before", which_process),
    )

    # ------------------------------------------------------------------------------------ what people write

    forked = 'process = mp.get_context("fork").Process(target=work)'

    mistakes = (
        mistake(a_copy, process=forked),
        mistake(a_copy, process=forked, start="process.start()\n__import__('torch').set_num_threads(1)"),
        mistake(which_process, process=forked, start="__import__('torch').set_num_threads(1)\nprocess.start()"),
        mistake(return_it, process="process = __import__('threading').Thread(target=work)"),
        mistake(no_call, process='process = mp.get_context("fork").Process(target=work())'),
        mistake(return_it, start=""),
        mistake(return_it, give="process.join()"),
    )


start_safely = StartSafely()
