"""Exercises whose answer talks to other ranks, in a group; feedback names the line that waits in vain."""

import functools
import re
from dataclasses import replace
from typing import NamedTuple

from helpers.exercises.engine import TOO_BUSY, Exercise, not_yet
from helpers.instruments.waits import IN_VAIN, PATIENCE, form_group, meet, own_line, starved

#: What gloo says, and dies, when a message is longer than the tensor that it was meant for.
_SIZES = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")
_DESTROYED = "the process group was gone when the function returned"
_CAUGHT = "caught the error of a collective that had waited in vain, and went on"
_UNWAITED = "started an asynchronous operation and never waited for it"


class _Lost(RuntimeError):
    """Some rank waited in vain, which ends the case in every rank. Its argument is this rank's `Lost`."""


class Lost(NamedTuple):
    """What a rank observes in such a case."""

    lines: list
    """By rank, the learner's line that waited in vain; empty where the function returned."""
    starved: float
    """The share of the limit, for which this rank had no core to run on."""
    messages: tuple
    """How many it had sent, or tried to, and how many it had asked for."""


class InGroup(Exercise):
    """An exercise whose answer talks to other ranks.

    `observe` finds the default group formed, over gloo. All ranks have to call the answer equally often; each
    call returns when all ranks have come back from theirs, and the class keeps its `traffic`, of
    `helpers.instruments.collectives`. A collective that a rank waits for in vain ends after `patience`
    seconds, and ends the case; so does an operation that nobody waits for.
    """

    world_sizes = (2,)
    timeout = 10
    patience = PATIENCE
    waiting = "does every rank come to the same collectives, equally often?"
    """Where to look if a rank waited in vain."""
    sizes = "do all ranks come to the same collective, or to a `recv` for this very `send`?"
    """Where to look if a rank was sent more, or less, than it expected."""

    @classmethod
    def run(cls, answer, case, slowly):
        import torch.distributed as dist

        from helpers.instruments.collectives import counted_traffic, late_results

        if not dist.is_initialized():
            cls.limit = form_group(slowly * cls.patience)

        @functools.wraps(answer)
        def together(*args, **kwargs):
            line, returned = "", None
            try:
                with late_results(), counted_traffic() as cls.traffic:
                    returned = answer(*args, **kwargs)
                if not dist.is_initialized():
                    raise RuntimeError(_DESTROYED)
                if cls.traffic.failed:
                    raise AssertionError(_CAUGHT)
                if cls.traffic.unwaited:  # it ends here: what is still under way would meet what comes next
                    raise AssertionError(_UNWAITED)
            except RuntimeError as error:
                if not IN_VAIN.search(str(error)):
                    raise
                line = own_line(error, answer)
            without_core = starved()  # before `meet()`: waiting there would itself count as starvation
            lines = meet(line)
            if any(lines):
                raise _Lost(Lost(lines, (without_core - before) / cls.limit,
                                 (len(cls.traffic.sent), cls.traffic.received)))
            return returned

        before = starved()
        try:
            return cls.observe(together, case)
        except _Lost as lost:
            return lost.args[0]

    @staticmethod
    def ends_after(observed):
        return isinstance(observed, Lost)

    def _judged(self, seen, case):
        if not isinstance(seen[0], Lost):
            return super()._judged(seen, case)
        return TOO_BUSY if any(one.starved > 0.1 for one in seen) else self.lost(seen, case)

    def lost(self, seen, case):
        """Feedback where ranks waited in vain; `seen` holds a `Lost` of each."""
        lines = seen[0].lines
        if len(set(lines)) == 1:
            words = f"every rank waited in vain at `{lines[0]}`"
        else:
            words = ", ".join(f"rank {rank} {f'waited in vain at `{line}`' if line else 'had returned'}"
                              for rank, line in enumerate(lines))
        return not_yet(words, "every rank returns", self.waiting)

    def _of_error(self, error, answer):
        sizes = _SIZES.search("".join(error.logs))
        if sizes:
            return not_yet(f"a rank was sent {sizes[1]} bytes where it expected {sizes[2]}, and died of it",
                           "what one rank sends is as long as what the other one receives", self.sizes)
        if any(_CAUGHT in one.message for one in error.failures):
            return not_yet(f"your function {_CAUGHT}", "no rank waits in vain", self.waiting)
        if any(_UNWAITED in one.message for one in error.failures):
            return not_yet(f"your function {_UNWAITED}", "each is waited for before its tensor is used",
                           "`isend`, `irecv` and `async_op=True` return at once, "
                           "with something that has a `.wait()`")
        if _DESTROYED in str(error):
            return not_yet("when your function returned, it had destroyed the process group",
                           "the group is still there: the training goes on with it",
                           "leave out `destroy_process_group`; who formed the group ends it, "
                           "at the end of the program")
        feedback = super()._of_error(error, answer)
        observed = re.sub(r"was at `[^`]*` \([^()]*in meet\)", "had returned", feedback.observed)
        return replace(feedback, observed=observed)
