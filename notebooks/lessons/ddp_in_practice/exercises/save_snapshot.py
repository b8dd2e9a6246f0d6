"""A snapshot that is whole at every moment: written under another name, then exchanged in one step."""

import inspect
import itertools
import os
from pathlib import Path

from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, holds
from helpers.reporting import RUN_FOLDER
from lessons.ddp_in_practice.exercises.crashes import Saving, is_snapshot, left_by_a_crash, snapshot

#: Each function that a rank runs has a folder of its own, the same one in all ranks.
_folders = itertools.count()


class SaveSnapshot(Saving):
    title = "A snapshot that survives a crash"
    task = ("Every rank calls `save_snapshot(state, path)`. Rank 0 alone writes `state` with `torch.save`, "
            "so that `torch.load(path)` reads it, and leaves `state` as it is. No rank returns before the file is "
            "there. If rank 0 dies **while** it saves, at whatever moment, or if the disk is full, `path` still holds "
            "the whole old snapshot or the whole new one. A power failure does no harm, either: before the file gets "
            "the name `path`, `os.fsync` waits until its bytes are on the disk.")
    hints = (
        "Write to another name in the same folder first. Call `file.flush()` and `os.fsync(file.fileno())`. Then call "
        "`os.replace(that, path)`, which is all or nothing.",
        "`dist.barrier()` makes the other ranks wait for rank 0. All ranks have to call it, so it must not "
        "stand inside the `if`.",
    )
    explanation = ("`os.replace` exchanges the file in one step: a crash before it leaves the old file, a "
                   "crash after it leaves the new one. `fsync` makes sure that the bytes are on the disk "
                   "before that. The barrier stands outside the `if`, so that every rank calls it.")
    why = ("Machines are taken away at any moment, and a job that saves often is likely to be saving at that "
           "moment. Half a snapshot under the right name costs the whole training before it.")

    # Whether rank 0 dies.
    cases = {"rank 0 stopped while it saved": True, "saved twice": False}
    patience = 5
    timeout = 20
    slow = True

    def answer(state, path):
        import os

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:                                            #: who
            with open(f"{path}.unfinished", "wb") as file:                  #: write
                torch.save(state, file)                                     #: save
                file.flush()
                os.fsync(file.fileno())                                     #: sync
            os.replace(f"{path}.unfinished", path)                          #: rename
        dist.barrier()                                                      #: wait

    def observe(save_snapshot, dies):
        if dies:
            left = left_by_a_crash(inspect.unwrap(save_snapshot))  # without the other ranks
            return {"left by a crash": left, "at path": [], "files changed": 0, "too early": False,
                    "changed": 0}
        path = Path(os.environ[RUN_FOLDER], f"saved-{next(_folders)}", "snapshot.pt")
        path.parent.mkdir(exist_ok=True)
        changed = 0
        for number in (1, 2):
            state = snapshot(number)
            save_snapshot(state, str(path))
            changed += not is_snapshot(state, number)
        at_path, changes, too_early = zip(*save_snapshot.calls, strict=True)
        return {"left by a crash": None, "at path": at_path, "files changed": sum(changes), "too early": any(too_early),
                "changed": changed}

    # ---------------------------------------------------------------------------------------- what must hold

    all_or_nothing = ("first write all of it to another name in the same folder: a crash or a full disk then leaves "
                      "half of that file only. `os.replace` replaces `path` in one step, without a `remove`")
    rank_0_alone = "which rank writes? On a shared disk, ranks would write over each other"
    all_of_it = "what you write, all of it, under which name, and whether it is finished (a thread may not be)"
    on_the_disk = "what you write stays in the system's memory for a while: when all is written, `flush` and `os.fsync`"
    who_waits = "which rank waits for which, and when? `sleep` is only a guess"

    def dies_of_a_crash(mine, wanted, case):
        if mine[0]["left by a crash"]:
            return f"there was {mine[0]['left by a crash']}", "the whole snapshot from before, or the new one"

    def other_ranks_write(mine, wanted, case):
        for rank, observed in enumerate(mine):
            if rank > 0 and observed["files changed"]:
                return f"rank {rank} wrote a file", "rank 0 alone writes"

    def early(mine, wanted, case):
        if mine[0]["too early"]:
            observed = "the file was given the name `path`, and not all of its bytes were known to be on the disk"
            return observed, "`os.fsync` has waited for all of them before"

    def changes_state(mine, wanted, case):
        if mine["changed"]:
            return "after the call, `state` is not what it was", "it is as it was: the training goes on with it"

    def missing(rank):
        """The rule that each snapshot was there when this rank returned."""

        def broken(mine, wanted, case):
            for number, what in enumerate(mine[rank]["at path"], start=1):
                if what != f"snapshot {number}":
                    observed = f"when rank {rank} returned from saving snapshot {number}, there was {what}"
                    return observed, "all of `state` is at `path` when a rank returns"

        return broken

    rules = (
        holds(dies_of_a_crash, all_or_nothing),
        holds(other_ranks_write, rank_0_alone),
        holds(missing(0), all_of_it),
        holds(missing(1), who_waits),
        holds(early, on_the_disk),
        each(changes_state, "which line takes something out of `state`, or puts something in? Work on a copy"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake(all_or_nothing, write="torch.save(state, path)", rename=""),
        mistake(all_or_nothing, rename="import shutil\n"
                                       'shutil.copy(f"{path}.unfinished", path)'),
        mistake(all_or_nothing, rename="if os.path.exists(path):\n"
                                       "    os.remove(path)\n"
                                       'os.replace(f"{path}.unfinished", path)'),
        mistake(who_waits, wait=""),
        mistake(who_waits, rename="", wait="dist.barrier()\n"
                                           "if dist.get_rank() == 0:\n"
                                           '    os.replace(f"{path}.unfinished", path)'),
        mistake(rank_0_alone, who="if True:"),
        mistake(all_of_it, save='torch.save(state["model"], file)'),
        mistake(on_the_disk, sync=""),
        mistake(on_the_disk, sync="", wait="dist.barrier()\n"
                                           "if dist.get_rank() == 0:\n"
                                           "    with open(path) as file:\n"
                                           "        os.fsync(file.fileno())\n"
                                           "dist.barrier()"),
        stop(lambda lost: lost[0].lines[0] and not any(lost[0].lines[1:]),
             "which ranks come to the barrier, and which do not?",
             rename='os.replace(f"{path}.unfinished", path)\n'
                    "dist.barrier()", wait=""),
    )


save_snapshot = SaveSnapshot()
