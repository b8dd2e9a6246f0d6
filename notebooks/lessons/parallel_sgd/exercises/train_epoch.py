"""A hunt: a barrier in a loop that one rank runs more often than the others."""

import re
import threading
import time

import torch.distributed as dist

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, nothing, same
from helpers.instruments.collectives import recorder_entries

#: Collectives that return in no rank before all ranks have come.
MEETS = re.compile(r"\b(barrier|all|reduce_scatter)|\b(reduce|gather)\b.*\b(broadcast|scatter)\b")


class TrainEpoch(InGroup):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`. The last rank has one batch "
            "more than the others. `step(batch)` trains on a batch, and `barrier()` waits until **all** "
            "ranks are waiting. Train on every batch once. Return only when every rank has trained on all "
            "of its batches, however long it takes.")
    hints = (
        "How often does rank 0 come to the barrier, and how often the last rank? Who is missing, and "
        "when?",
        "All ranks share the end of the epoch. They need not share every step.",
    )
    explanation = ("A barrier waits for all ranks. If you call it once per batch, the last rank calls it "
                   "more often. If you call it once per epoch, all ranks call it equally often.")
    why = ("all ranks must call a barrier, like every collective, equally often. Remainders, uneven shards, "
           "an early `break` or an `if rank == 0` break this rule. Then there is no error, but silence.")

    world_sizes = (2, 3)
    # How many batches a rank has; the last one has one more.
    cases = {"": 2, "other batches": 5, "a single batch, the last rank's": 0}

    def answer(batches, step, barrier):
        for batch in batches:       #: loop
            step(batch)             #: step
        barrier()                   #: barrier

    def observe(train_epoch, at_least):
        is_last = dist.get_rank() == dist.get_world_size() - 1
        batches = [f"batch {number} of {at_least}" for number in range(at_least + is_last)]
        trained = []
        calls = []  # for each call of `step` or `barrier` an event, set when it has ended
        recorded_before = len(recorder_entries())
        recorded_at_last_step = recorded_before

        def called(function, *args, **kwargs):
            done = threading.Event()
            calls.append(done)
            try:
                if threading.current_thread() is not threading.main_thread():
                    time.sleep(0.3)  # who does not wait for the threads returns before they are done
                return function(*args, **kwargs)
            finally:
                done.set()

        def train(batch):
            nonlocal recorded_at_last_step
            trained.append(str(batch))
            recorded_at_last_step = len(recorder_entries())

        def step(batch):
            return called(train, batch)

        def barrier(*args, **kwargs):
            return called(dist.barrier, *args, **kwargs)

        train_epoch(list(batches), step, barrier)

        under_way = sum(not done.is_set() for done in calls)
        for done in calls:
            done.wait(2)  # so that a barrier under way meets no other one
        since_last_step = train_epoch.traffic.collectives[recorded_at_last_step - recorded_before:]
        names = " ".join(collective.name for collective in since_last_step)
        return {
            "times trained": {batch: trained.count(batch) for batch in sorted({*batches, *trained})},
            "calls under way in threads": under_way,
            "waits for all": bool(MEETS.search(names)),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "how often does each rank call `barrier()`? The last rank has one batch more"
    only_a_pause = "where do the ranks wait for each other? A pause (`sleep`) is only a guess"

    def waits_for_nobody(mine, wanted, case):
        if not mine["waits for all"]:
            return "after its last batch it waits for nobody", "no rank returns before all are done"

    rules = (
        same("times trained", "which batches does the loop leave out or repeat?"),
        nothing("calls under way in threads", "join a thread of your own before you return",
                "all of them have ended when the function returns"),
        each(waits_for_nobody, only_a_pause),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(only_a_pause, barrier=""),
        mistake("the barrier comes after the last batch, not before the first",
                loop="barrier()\nfor batch in batches:", barrier=""),
        mistake("which batches does the loop leave out?", loop="for batch in batches[:2]:"),
        mistake("the loop repeats a batch", step="step(batch)\nstep(batch)"),
        stop("waited in vain at `barrier()`", waiting, step="step(batch)\nbarrier()", barrier=""),
        stop("never waited for it",
             "with `async_op=True`, `barrier` returns at once. Call `.wait()` on what it returns",
             barrier="barrier(async_op=True)"),
        stop("caught the error",
             "you caught the error of a rank that had waited in vain. How often does each rank call `barrier()`? "
             "The last rank has one batch more",
             step="step(batch)\n"
                  "try:\n"
                  "    barrier()\n"
                  "except RuntimeError:\n"
                  "    pass",
             barrier=""),
    )


train_epoch = TrainEpoch()
