"""A stand-in for a worker's process, which shows who waited for it."""

import multiprocessing
import threading
import time


class Worker:
    """Like a `multiprocessing.Process` that trains until somebody waits for it: no clock decides a check.

    `join()` waits. So does asking again and again whether it has ended: the second time, it has. `join(10)`
    gives up before that. `join()` begins with `until_all_are_started()`: another thread may be starting some.
    """

    def __init__(self, rank, until_all_are_started):
        self.rank = rank
        self.until_all_are_started = until_all_are_started
        self.trains = True
        self.killed = False
        self.asked = 0

    def join(self, timeout=None):
        if timeout is None:
            self.until_all_are_started()
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.3)  # who does not wait for the threads goes on while it trains
            self.trains = False

    def kill(self):
        self.killed = self.trains
        self.trains = False

    terminate = kill

    def is_alive(self):
        return self.exitcode is None

    @property
    def exitcode(self):
        self.asked += 1
        if self.asked > 1:
            self.join()
        if self.trains:
            return None
        return -9 if self.killed else 0

    @property
    def sentinel(self):  # for `multiprocessing.connection.wait`
        self.join()
        reader, writer = multiprocessing.Pipe(duplex=False)
        writer.close()
        return reader

    def close(self):
        """Nothing is left to close."""
