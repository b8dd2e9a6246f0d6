"""The cheapest dtype that reaches as far up, as far down and as fine as a job needs."""

from typing import NamedTuple

import torch

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import kind_of
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


class Job(NamedTuple):
    """What a job needs of a format."""

    largest: float
    smallest: float
    error: float
    """Relative."""
    fast: str
    """The names of the formats that the hardware is fast in."""


class InOrder(set):
    """A set that is iterated by name, or backwards, so that no answer is right by a lucky order."""

    backwards = False

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=str, reverse=self.backwards))

    def union(self, *others):
        united = InOrder(super().union(*others))
        united.backwards = self.backwards
        return united

    __or__ = __ror__ = union


def at_the_limits_of(*names):
    """{the case in words: the job}: what a format just does, and what is a little too much for it."""
    jobs = {}
    for name in names:
        info = torch.finfo(getattr(torch, name))
        just = Job(info.max, info.smallest_normal, info.eps / 2, name if info.bits < 32 else "")
        jobs[f"all that {name} can do"] = just
        jobs[f"numbers a little larger than {name}'s largest"] = just._replace(largest=info.max * 1.001)
        jobs[f"numbers a little smaller than {name}'s smallest normal one"] = just._replace(
            smallest=info.smallest_normal * 0.999)
        jobs[f"a little less error than {name} makes"] = just._replace(error=info.eps / 2 * 0.999)
    return jobs


class ChooseDtype(Exercise):
    title = "A dtype for a job"
    task = ("A job needs numbers up to `largest` and down to `smallest` (as *normal* numbers, with all of their "
            "bits). It tolerates a relative rounding error of `error`. Rounding is wrong by at most half of "
            "`eps`. A limit that is just met is met. Return the torch dtype with the fewest bytes that meets all "
            "three limits. If two have equally many bytes, return the more precise one. You may choose `float32` "
            "and `float64` always, but `float8_e4m3fn`, `float8_e5m2`, `float16` and `bfloat16` only if they are "
            "in `fast`, a set of torch dtypes: those that the hardware is fast in. Raise `ValueError` if no format "
            "meets the limits.")
    hints = (
        "`torch.finfo(dtype)` knows `max`, `smallest_normal`, `eps` and `bits`. (`min` is the most "
        "*negative* number.)",
        "Rounding goes to the nearer neighbour. So it is wrong by at most half the distance between two "
        "numbers, `eps / 2`.",
    )
    explanation = ("Ask each format three questions: how far up, how far down, and how fine? Take the cheapest format "
                   "that meets all three limits. Sorting by bytes and then by `eps` puts the more precise of two "
                   "first.")
    why = ("fp16 and bf16 take the same memory, but fp16 is finer and bf16 reaches farther. The job's numbers "
           "decide which one you need, and then the hardware decides whether it is fast.")

    cases = {
        "activations of a classifier, GPU with fp16 cores": Job(6e4, 1e-4, 6e-4, "float16"),
        "gradients without a loss scale, newer GPU": Job(1e2, 1e-12, 5e-3, "float16 bfloat16"),
        "weights that an optimizer adds up": Job(1e1, 1e-8, 1e-7, "float16 bfloat16"),
        "forward pass for serving, GPU with fp8": Job(4e2, 2e-2, 7e-2, "float16 bfloat16 float8_e4m3fn float8_e5m2"),
        "outliers in a language model, GPU with fp16 only": Job(1e6, 1e-4, 4e-3, "float16"),
        "activations that either 16-bit format holds": Job(1e3, 1e-3, 4e-3, "float16 bfloat16"),
        "what fp8 and fp16 would hold, CPU with bf16": Job(4e2, 2e-2, 7e-2, "bfloat16"),
        "numbers that either fp8 format holds": Job(1e2, 1e-1, 2e-1, "float8_e5m2 float8_e4m3fn"),
        "numbers that fp16 holds as subnormal ones": Job(1e2, 1e-6, 1e-3, "float16 bfloat16"),
        "a sum of money in cents, exact to the cent": Job(1e12, 1.0, 1e-13, "float16 bfloat16"),
        "a probability of many coins": Job(1.0, 1e-310, 1e-3, "float16 bfloat16"),
        **at_the_limits_of("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
    }

    def answer(largest, smallest, error, fast):
        formats = sorted([*fast, torch.float32, torch.float64],                                         #: formats
                         key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))
        for dtype in formats:
            info = torch.finfo(dtype)
            if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 <= error:      #: limits
                return dtype
        raise ValueError("no format will do")                                                           #: none

    def observe(choose_dtype, job):
        def chosen(backwards):
            fast = InOrder(getattr(torch, name) for name in job.fast.split())
            fast.backwards = backwards
            try:
                dtype = choose_dtype(job.largest, job.smallest, job.error, fast)
            except ValueError:
                return "a ValueError"
            return str(dtype) if isinstance(dtype, torch.dtype) else kind_of(dtype)

        return {"dtype": chosen(backwards=True), "dtype, with the set in another order": chosen(backwards=False)}

    # ---------------------------------------------------------------------------------------- what must hold

    rules = (
        same("dtype", "compare `max`, `smallest_normal` and half of `eps` with their limits, for the formats in `fast` "
                      "and for `float32` and `float64`; then the fewest bytes win, then the smaller `eps`"),
        same("dtype, with the set in another order", "which format comes first? A set has no order"),
    )

    # ------------------------------------------------------------------------------------ what people write

    just_met = "a limit that is just met is met: use `<=`, not `<`"

    mistakes = (
        mistake(just_met,
                limits="if info.max > largest and info.smallest_normal <= smallest and info.eps / 2 <= error:"),
        mistake(just_met,
                limits="if info.max >= largest and info.smallest_normal < smallest and info.eps / 2 <= error:"),
        mistake(just_met,
                limits="if info.max >= largest and info.smallest_normal <= smallest and info.eps / 2 < error:"),
        mistake("rounding is wrong by `eps / 2` at most",
                limits="if info.max >= largest and info.smallest_normal <= smallest and info.eps <= error:"),
        mistake("rounding may be wrong by `eps / 2`, no less",
                limits="if info.max >= largest and info.smallest_normal <= smallest and info.eps / 4 <= error:"),
        mistake("`min` is the most negative number, not the smallest one",
                limits="if info.max >= largest and info.min <= smallest and info.eps / 2 <= error:"),
        mistake("below `smallest_normal`, bits are lost",
                limits="if (info.max >= largest and info.smallest_normal * info.eps <= smallest\n"
                       "        and info.eps / 2 <= error):"),
        mistake("is the format that you return in `fast`?",
                formats="formats = sorted([torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16,\n"
                        "                  torch.float32, torch.float64],\n"
                        "                 key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))"),
        mistake("`float32` and `float64` are allowed always",
                formats="formats = sorted([*fast],\n"
                        "                 key=lambda dtype: (torch.finfo(dtype).bits, torch.finfo(dtype).eps))"),
        mistake("of two, the smaller `eps` wins",
                formats="formats = sorted([*fast, torch.float32, torch.float64],\n"
                        "                 key=lambda dtype: (torch.finfo(dtype).bits, -torch.finfo(dtype).max))"),
        mistake("after the last format, `raise ValueError`", none="return None"),
    )


choose_dtype = ChooseDtype()
