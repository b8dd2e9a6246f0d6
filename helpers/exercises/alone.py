"""Exercises whose answer only computes, in one rank: a limit of computing time ends a loop without end."""

import signal

from helpers.exercises.exercise import Exercise


class Endless(BaseException):
    """What ends an answer that computes for too long: no `except Exception` catches it."""

    __module__ = "builtins"  # a traceback then names it without where it comes from


class Alone(Exercise):
    """An exercise whose answer only computes, in one rank.

    The limit is computing time, not the clock: a slow answer has the same on a busy and on a quiet machine.
    """

    timeout = 60
    computing = 5
    """Seconds of computing that one call of `observe` may take."""

    @classmethod
    def run(cls, answer, case, slowly):
        def enough(*_):
            raise Endless(f"no answer after {cls.computing} s of computing: is there a loop without end?")

        if not hasattr(signal, "setitimer"):  # Windows has only `timeout`
            return cls.observe(answer, case)
        signal.signal(signal.SIGPROF, enough)
        signal.setitimer(signal.ITIMER_PROF, cls.computing)
        try:
            return cls.observe(answer, case)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
