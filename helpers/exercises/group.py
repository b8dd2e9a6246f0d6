"""Exercises whose answer talks to other ranks, in a group; feedback names the line that waits in vain."""

import functools
import re

from helpers.exercises.exercise import Exercise
from helpers.exercises.feedback import not_yet
from helpers.exercises.in_rank import Lost
from helpers.instruments.waits import IN_VAIN, PATIENCE, form_group, meet, own_line, starved

#: What gloo says, and dies, when a message is longer than the tensor that it was meant for.
_SIZES = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")
_DESTROYED = "the process group was gone when the function returned"
_CAUGHT = "caught the error of a collective that had waited in vain, and went on"
_UNWAITED = "started an asynchronous operation and never waited for it"


class _SomeRankIsLost(RuntimeError):
    """Some rank waited in vain, which ends the case in every rank. Its argument is this rank's `Lost`."""


class InGroup(Exercise):
    """An exercise whose answer talks to other ranks.

    `observe` finds the default group formed, over gloo. All ranks have to call the function equally often; each call
    returns when all ranks have come back from theirs. The function that `observe` is handed has an attribute
    `traffic`, what this rank asked for in the last call, of `helpers.instruments.collectives`. A collective that a
    rank waits for in vain ends after `patience` seconds, and ends the check; so does an operation that nobody waits
    for.
    """

    world_sizes = (2,)
    timeout = 10
    patience = PATIENCE
    limit = None
    """In a rank, once its group is formed: the seconds after which its collectives end."""
    waiting = "does every rank come to the same collectives, equally often?"
    sizes = "do all ranks come to the same collective, or to a `recv` for this very `send`?"
    """Where to look if a rank was sent more, or less, than it expected."""

    @classmethod
    def run(cls, answer, case, slowly):
        import torch.distributed as dist

        from helpers.instruments.collectives import counted_traffic, late_results

        if not dist.is_initialized():
            cls.limit = form_group(slowly * cls.patience)
        starved_before = starved()

        @functools.wraps(answer)
        def together(*args, **kwargs):
            returned = None
            line = ""  # at which this rank waited in vain
            try:
                with late_results(), counted_traffic() as together.traffic:
                    returned = answer(*args, **kwargs)
                if not dist.is_initialized():
                    raise RuntimeError(_DESTROYED)
                if together.traffic.failed:
                    raise AssertionError(_CAUGHT)
                if together.traffic.unwaited:  # it ends here: what is under way would meet what comes next
                    raise AssertionError(_UNWAITED)
            except RuntimeError as error:
                if not IN_VAIN.search(str(error)):
                    raise
                line = own_line(error, answer)
            without_core = starved() - starved_before  # before `meet`: waiting there would itself count
            lines = meet(line)
            if any(lines):
                traffic = together.traffic
                raise _SomeRankIsLost(Lost(lines, without_core / cls.limit, len(traffic.sent), traffic.received, case))
            return returned

        try:
            return cls.observe(together, case)
        except _SomeRankIsLost as lost:
            return lost.args[0]

    def known_failure(self, error):
        sizes = _SIZES.search("".join(error.logs))
        if sizes:
            return not_yet(f"a rank was sent {sizes[1]} bytes where it expected {sizes[2]}, and died of it",
                           "what one rank sends is as long as what the other one receives", self.sizes)
        words = " ".join(failure.exception for failure in error.failures)
        if _CAUGHT in words:
            return not_yet(f"your function {_CAUGHT}", "no rank waits in vain", self.waiting)
        if _UNWAITED in words:
            return not_yet(f"your function {_UNWAITED}", "each is waited for before its tensor is used",
                           "`isend`, `irecv` and `async_op=True` return at once, with something that has a `.wait()`")
        if _DESTROYED in words:
            return not_yet("when your function returned, it had destroyed the process group",
                           "the group is still there: the training goes on with it",
                           "leave out `destroy_process_group`; who formed the group ends it, "
                           "at the end of the program")
        return None
