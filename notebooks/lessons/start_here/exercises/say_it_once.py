"""One rank prints for all of them."""

import contextlib
import io
import os
from unittest import mock

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake, stop
from helpers.exercises.rules import each, holds


class SayItOnce(Exercise):
    title = "Say it once"
    task = ("Every rank calls your function. One rank alone prints: `message`, with `print`, once, unchanged, and "
            "nothing else, for any number of ranks. Afterwards each rank can still print. There is no process group "
            "here. A rank knows its number from `os.environ['RANK']`, which is a string.")
    hints = (
        "Every rank can find out its own number: `int(os.environ['RANK'])`.",
        "Which rank is there in every run, even in a run with a single rank?",
    )
    explanation = ("There is a rank 0 in every run, so rank 0 speaks for all. Programs save checkpoints and "
                   "show progress bars in the same way.")
    why = ("a script that every rank runs does everything N times unless you prevent it: prints, downloads, "
           "checkpoints. If two ranks write one file at the same time, they can break it.")

    world_sizes = (1, 3)
    # The message, and whether it is as if each rank had a machine of its own.
    cases = {
        "": ("Training begins.", True),
        "another message": ("  epoch 0:\n  loss 0.5", False),
    }
    timeout = 5

    def answer(message):
        if int(os.environ["RANK"]) == 0:        #: zero
            print(message)                      #: print

    def observe(say_it_once, case):
        message, machine_each = case
        rank = os.environ["RANK"]
        numbers = {"GROUP_RANK": rank, "LOCAL_RANK": "0"} if machine_each else {"GROUP_RANK": "0", "LOCAL_RANK": rank}
        text = io.StringIO()
        with (mock.patch.dict(os.environ, numbers), contextlib.redirect_stdout(text),
              contextlib.redirect_stderr(text)):
            returned = say_it_once(message)
            if text.closed:
                return {"printed": "", "mute": True, "returned": type(returned).__name__}
            printed = text.getvalue()
            print("later")
        return {"printed": printed, "mute": text.getvalue() == printed, "returned": type(returned).__name__}

    # ---------------------------------------------------------------------------------------- what must hold

    def not_once(mine, wanted, case):
        message, _ = case
        ranks = [rank for rank, observed in enumerate(mine) if message in observed["printed"]]
        texts = [observed["printed"] for observed in mine if observed["printed"]]
        if not texts:
            return "it was not printed", "once"
        if len(ranks) > 1:
            return f"it was printed {len(ranks)} times, by rank {', '.join(map(str, ranks))}", "once"
        if len(texts) > 1:
            return f"{len(texts)} ranks print: `{'`, `'.join(map(repr, texts))}`", "one rank prints the whole message"
        if texts[0].removesuffix("\n") != message:
            return f"what the rank printed is `{texts[0]!r}`", f"`{message!r}`, once and unchanged"

    def mute(mine, wanted, case):
        if mine["mute"]:
            return "after your function, `print` prints nothing any more", "each rank can still print"

    rules = (
        each(mute, "leave `print` and `sys.stdout` as they are: only this message is for one rank alone"),
        holds(not_once, "which rank comes to the `print`? Does it print the message and nothing else? "
                        "(What it returns, nobody sees.)"),
    )

    # ------------------------------------------------------------------------------------ what people write

    every_rank = "every rank comes to the `print`. Which one should speak?"

    mistakes = (
        mistake(every_rank, zero="print(message)"),
        mistake(f"{every_rank} (`'0'` is a text, and counts as true)", zero='if os.environ["RANK"]:'),
        mistake("does a rank meet your condition? (`os.environ['RANK']` is a string, and never equals the number 0. "
                "The last rank's number is `WORLD_SIZE` - 1.) Or does something else keep it away from `print`?",
                zero='if os.environ["RANK"] == 0:'),
        mistake("which rank is there in every run? Ranks are counted from 0", zero='if os.environ["RANK"] == "1":'),
        mistake("`LOCAL_RANK` is a rank's number on its own machine, so each machine has a 0",
                zero='if int(os.environ["LOCAL_RANK"]) == 0:'),
        mistake("`GROUP_RANK` is the number of a machine, and all ranks of a machine share it",
                zero='if int(os.environ["GROUP_RANK"]) == 0:'),
        stop("process group",
             "`dist.get_rank()` asks the group, and there is none here. `os.environ['RANK']` needs none",
             zero="import torch.distributed as dist\n"
                  "if dist.get_rank() == 0:\n"
                  "    print(message)"),
        mistake("print the message alone", print='print("rank 0 says:", message)'),
    )


say_it_once = SayItOnce()
