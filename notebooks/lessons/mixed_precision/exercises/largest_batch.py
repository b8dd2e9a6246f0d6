"""A search for the largest batch that fits: doubling, then halving, and one error caught."""

import math
from typing import NamedTuple

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import between, each, nothing
from helpers.instruments.memory import held_bytes


class Machine(NamedTuple):
    """Where `fits` tries a step."""

    largest: int
    """The largest batch that fits."""
    most: int
    """The largest batch that may be tried."""
    bug_from: float = math.inf
    """The smallest batch that fits and shows a bug in the model."""
    bug: type | None = None
    """The error of that bug."""


class Bug(Exception):
    """What all bugs in the model have in common."""


class WrongShape(Bug, RuntimeError):
    words = "mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)"


class WrongLayout(Bug, RuntimeError):
    words = "required rank 4 tensor to use channels_last memory format"


class TooFewValues(Bug, ValueError):
    words = "Expected more than 1 value per channel when training"


class NoRoom(Bug, MemoryError):
    words = "Unable to allocate 6.00 GiB for an array"


class Enough(BaseException):
    """Ends a function that tries on and on, whatever it catches."""


class LargestBatch(Exercise):
    title = "The largest batch"
    task = ("`fits(batch)` tries a training step with `batch` samples. It returns `True`, or raises "
            "`torch.OutOfMemoryError`. Find by trying the largest batch from 1 to `most` that fits, and return "
            "it, an `int`. Return 0 if not even one sample fits. If a batch fits, all smaller ones fit. Others use "
            "this machine, too: never try more than **twice** what fits (if nothing fits, no more than 1), and once "
            "a size has failed, no larger one. Try at most **30** sizes. Before each try, and when you return, the "
            "memory of earlier tries has to be free. A step that failed keeps its memory until you leave the `except` "
            "block. All other errors are bugs, whatever they speak of: let them through.")
    hints = (
        "First double: 1, 2, 4, 8 …, until it does not fit, or `most` is reached. Then you know one size "
        "that fits and a larger one that does not. Try the size in the middle, again and again.",
        "Catch `torch.OutOfMemoryError` only. It is a `RuntimeError`, but a wrong shape raises "
        "`RuntimeError`, too. In the `except` block, note that the try failed. Leave the block before you "
        "try again.",
    )
    explanation = ("Doubling never tries more than twice what fits, and it finds an interval in few tries. Halving the "
                   "interval finds the exact size. Only the error that means *too large* is caught.")
    why = ("a search that begins with a large batch can take a shared machine down. A search that catches every "
           "error calls a broken model *too large*. In practice, leave some room, because batches differ in "
           "memory use.")

    timeout = 10
    cases = {
        "the largest that fits is 100, `most` is 4096": Machine(100, 4096),
        "the largest that fits is 1, `most` is 64": Machine(1, 64),
        "the largest that fits is 0, `most` is 64": Machine(0, 64),
        "the largest that fits is 64, `most` is 64": Machine(64, 64),
        "the largest that fits is 50, `most` is 50": Machine(50, 50),
        "the largest that fits is 40, `most` is 50": Machine(40, 50),
        "the largest that fits is 1023, `most` is 100000": Machine(1023, 100_000),
        "a bug in the model": Machine(100, 4096, 1, WrongShape),
        "a bug that speaks of memory": Machine(100, 4096, 1, WrongLayout),
        "a bug that is no `RuntimeError`": Machine(100, 4096, 1, TooFewValues),
        "a bug that is a `MemoryError`": Machine(100, 4096, 1, NoRoom),
        "a bug that shows from 3 samples on": Machine(100, 4096, 3, WrongShape),
        "a bug that shows from 80 samples on": Machine(100, 4096, 80, WrongLayout),
    }

    def answer(fits, most):
        def ok(batch):
            try:                                                                        #: attempt
                return fits(batch)
            except torch.OutOfMemoryError:
                return False

        good, bad = 0, 1                                                                #: begin
        while bad <= most and ok(bad):                                                  #: grow
            good, bad = bad, 2 * bad                                                    #: double
        bad = min(bad, most + 1)                                                        #: bound
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if ok(middle) else (good, middle)
        return good

    def observe(largest_batch, machine):
        tried = []
        held_before = []
        failed = []
        beyond = []
        left = 0

        def fits(batch):
            tried.append(batch)
            held_before.append(held.now)
            if len(tried) > 30:
                raise Enough("more than 30 tries")
            if failed and batch > min(failed):
                beyond.append(batch)
            activations = torch.zeros(batch, dtype=torch.int8)
            if held.now > machine.largest:
                failed.append(batch)
                raise torch.OutOfMemoryError(f"no room for {activations.nbytes} bytes: out of memory")
            if batch >= machine.bug_from:
                raise machine.bug(machine.bug.words)
            return True

        try:
            with held_bytes() as held:
                outcome = f"returned {largest_batch(fits, machine.most)}"
                left = held.now
        except (Enough, Bug) as error:
            outcome = f"raised {type(error).__name__}: {error}"
        return {
            "tried": tried,
            "outcome": outcome,
            "smallest try": min(tried, default=1),
            "largest try": max(tried, default=1),
            "tries of more than a size that had failed": beyond,
            "samples still held": max(held_before, default=0),
            "samples held at the end": left,
        }

    # ---------------------------------------------------------------------------------------- what must hold

    def another_outcome(mine, wanted, case):
        if mine["outcome"] != wanted["outcome"]:
            tried = ", ".join(map(str, mine["tried"])) or "nothing"
            return f"it {mine['outcome']}; it tried {tried}", f"it {wanted['outcome']}"

    rules = (
        between("largest try", lambda wanted, machine: (0, max(1, min(machine.most, 2 * machine.largest))),
                "begin with 1, and never try more than `most` or twice what has fit"),
        between("smallest try", lambda wanted, machine: (1, math.inf), "the smallest batch to try has one sample"),
        nothing("tries of more than a size that had failed",
                "a larger batch needs more memory: let the size that failed be the upper bound"),
        nothing("samples still held", "leave the `except` block before you try again, and keep no exception"),
        each(another_outcome, "return the last size that fits as an int, try all sizes that may be larger, in few "
                              "tries, and catch one error only"),
        nothing("samples held at the end", "what keeps the memory of a try? Keep no exception"),
    )

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("a first try of `most` may be far too much: begin with 1",
                grow="good = most\n"
                     "while good and not ok(good):\n"
                     "    good -= 1\n"
                     "return good", bound=""),
        mistake("sizes that grow by 1 take too many tries: double", double="good, bad = bad, bad + 1", bound=""),
        mistake("the largest need not be a power of two: go on halving", bound="return good"),
        mistake("a bug is a `RuntimeError`, too: catch less",
                attempt="try:\n"
                        "    return fits(batch)\n"
                        "except RuntimeError:\n"
                        "    return False"),
        mistake("a bug may speak of memory, too: `torch.OutOfMemoryError` is the one error that means *too large*",
                attempt="try:\n"
                        "    return fits(batch)\n"
                        "except RuntimeError as error:\n"
                        "    if 'memory' not in str(error):\n"
                        "        raise\n"
                        "    return False"),
        mistake("stop doubling at `most`", grow="while ok(bad):"),
        mistake("`most` itself may fit, and you do not try it", bound="bad = min(bad, most)"),
        mistake("doubling has jumped over `most`, which is not yet a size that fits: go on halving",
                bound="if bad > most:\n"
                      "    return most"),
        mistake("perhaps not even one sample fits: try it", begin="good, bad = 1, 2"),
    )


largest_batch = LargestBatch()
