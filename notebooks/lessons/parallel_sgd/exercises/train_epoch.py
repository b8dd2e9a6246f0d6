"""A hunt: a barrier in a loop that one rank runs more often than the others."""

import threading
import time

import torch.distributed as dist

from helpers.exercises.group import InGroup
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, nothing, same

AT_THE_END = "no rank returns before all have trained on their last batch"


class TrainEpoch(InGroup):
    title = "Hunt: the barrier that one worker never reaches"
    task = ("Every rank calls your function with its own list of `batches`. The last rank has one batch "
            "more than the others. `step(batch)` trains on a batch, and `barrier()` waits until **all** "
            "ranks are waiting. Train on every batch once. Return only when every rank has trained on all "
            "of its batches, however long it takes: wait at the `barrier` that you are given. Leave the list "
            "`batches` as it is, because the next epoch needs it again.")
    hints = (
        "How often does rank 0 come to the barrier, and how often the last rank? Who is missing, and "
        "when?",
        "All ranks share the end of the epoch. They need not share every step.",
    )
    explanation = ("A barrier waits for all ranks. If you call it once per batch, the last rank calls it "
                   "more often. If you call it once per epoch, all ranks call it equally often.")
    why = ("all ranks must call a barrier, like every collective, equally often. Remainders, uneven shards, "
           "an early `break` or an `if rank == 0` break this rule. Then there is silence in place "
           "of an error, until a timeout ends it, if there is one.")

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
        barriers = []  # for each time at `barrier`, how many batches were trained before

        def called(function, *arguments):
            done = threading.Event()
            calls.append(done)
            try:
                if threading.current_thread() is not threading.main_thread():
                    time.sleep(0.3)  # who does not wait for the threads returns before they are done
                return function(*arguments)
            finally:
                done.set()

        def train(batch):
            trained.append(str(batch))

        def wait(async_op, trained_before):
            waiting = dist.barrier(async_op=async_op)
            barriers.append(trained_before)
            return waiting

        def step(batch):
            return called(train, batch)

        def barrier(async_op=False):
            return called(wait, async_op, len(trained))

        given = list(batches)
        train_epoch(given, step, barrier)

        under_way = sum(not done.is_set() for done in calls)
        for done in calls:
            done.wait(2)  # so that a barrier under way meets no other one
        return {
            "times trained": {batch: trained.count(batch) for batch in sorted({*batches, *trained})},
            "calls under way in threads": under_way,
            "waits at the end": len(trained) in barriers,
            "collectives of its own": len(train_epoch.traffic.collectives) - len(barriers),
            "batches afterwards": list(map(str, given)),
        }

    # ---------------------------------------------------------------------------------------- what must hold

    waiting = "how often does each rank call `barrier()`? The last rank has one batch more"
    only_a_pause = "where do the ranks wait for each other after the last batch? A pause (`sleep`) is only a guess"
    another = ("`dist.barrier()` and other collectives of yours may wait for other processes. Only the `barrier` that "
               "you are given knows who trains here")
    keep = "what takes items out of the list, or moves them? A loop over the list leaves it as it is"

    def waits_for_others(mine, wanted, case):
        if not mine["waits at the end"] and mine["collectives of its own"]:
            return "after its last batch it does not call `barrier`, but it calls a collective of its own", AT_THE_END

    def waits_for_nobody(mine, wanted, case):
        if not mine["waits at the end"]:
            return "after its last batch it does not call `barrier`", AT_THE_END

    rules = (
        same("times trained", "which batches does the loop leave out or repeat?"),
        nothing("calls under way in threads", "join a thread of your own before you return",
                "all of them have ended when the function returns"),
        each(waits_for_others, another),
        each(waits_for_nobody, only_a_pause),
        same("batches afterwards", keep),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(only_a_pause, barrier=""),
        mistake(another, barrier="import torch.distributed as dist\ndist.barrier()"),
        mistake(keep, loop="while batches:\n    batch = batches.pop(0)"),
        mistake("the barrier comes after the last batch, not before it",
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
