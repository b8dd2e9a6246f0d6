"""Processes that show who waited for them."""

import multiprocessing
import os
import sys
import threading

_CONTEXT = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class Worker(_CONTEXT.Process):
    """A worker that trains until somebody waits for it: no time that passes ends it, and so none decides anything.

    `join()` waits. So does who asks again and again whether it has ended: the second time, it has. `join(10)` does not:
    this worker takes longer.

    Who starts it gives it, after that (neither travels to a process): `all_started`, a `threading.Event`, set when all
    workers have been started; and `threads`, how many there were before. Where there are more, a `join()` waits for
    that event first, for another thread may be starting the rest.
    """

    def __init__(self, rank):
        super().__init__(daemon=True)
        self.rank, self.waited_for, self.asked = rank, _CONTEXT.Semaphore(0), 0

    def run(self):
        self.waited_for.acquire()
        os._exit(0)  # where a thread of a pool forked it, a Python process cannot leave in good order

    def join(self, timeout=None):
        if timeout is None:
            if threading.active_count() > self.threads:
                self.all_started.wait(5)
                self.all_started.set()  # nobody came: nobody waits for them again
            self.waited_for.release()
            super().join()

    def is_alive(self):
        return self.exitcode is None

    @property
    def exitcode(self):
        self.asked += 1
        if self.asked > 1:
            self.join()
        return super().exitcode

    @property
    def sentinel(self):  # for `multiprocessing.connection.wait`
        self.join()
        return super().sentinel

    def close(self):
        """Nothing: the check still has questions."""

    def trains(self):
        return super().exitcode is None
