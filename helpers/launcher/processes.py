"""The processes of one run: start, watch and ask them, end them and everything that they have started."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import connection

from helpers.launcher import client
from helpers.launcher.files import SAY_WHAT_YOU_DO, Files, until

#: Seconds that a process is given after SIGTERM, to save what it has.
SECONDS_AFTER_SIGTERM = 3.0
#: Seconds that an interrupted rank is given to leave in good order.
SECONDS_AFTER_INTERRUPT = 1.0
#: Seconds that multiprocessing's resource tracker is given, once its rank is gone, to free shared memory.
_SECONDS_FOR_THE_TRACKER = 0.5


class Forked:
    """A rank that the fork server has started."""

    def __init__(self, folder, rank, environment):
        self.server, self.pid, self.connection = client.request_rank(folder, rank, environment)
        self.exitcode = None

    def poll(self):
        """Its exit code, negative for a signal; None while it runs."""
        if self.exitcode is None and connection.wait([self.connection], 0):
            message = self.connection.recv(64)  # nothing, if the server was killed, and its ranks with it
            self.exitcode = int(message or -signal.SIGKILL)
        return self.exitcode

    def close(self):
        self.connection.close()
        self.server.forget(self.pid)


class Spawned(subprocess.Popen):
    """A rank that imports torch itself."""

    def __init__(self, folder, rank, environment):
        code = f"from helpers.launcher import rank; rank.spawned({str(folder)!r}, {rank})"
        with open(Files(folder, rank).log, "ab") as log:
            super().__init__([sys.executable, "-u", "-c", client.FIND_THIS_PACKAGE + code], env=environment,
                             start_new_session=True, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def close(self):
        self.stdin.close()


class Processes:
    """`nprocs` ranks that run the work lying in `folder`. A `with` block ends them, however it is left."""

    def __init__(self, nprocs, folder, environment):
        self.nprocs = nprocs
        self.folder = folder
        self.environment = environment
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        with interrupts_held():
            if kind is KeyboardInterrupt:  # as Ctrl-C would: they may leave in good order
                self._signal(signal.SIGINT)
                until(lambda: not self._running(), SECONDS_AFTER_INTERRUPT)
            self.end()

    def start(self):
        """Start every rank. Where that cannot be, RuntimeError."""
        Rank = Forked if client.START_METHOD == "forkserver" else Spawned
        with interrupts_held():
            for rank in range(self.nprocs):
                try:
                    process = Rank(self.folder, rank, self.environment)
                except OSError as error:
                    raise RuntimeError(f"rank {rank} of {self.nprocs} could not be started ({error}); "
                                       "close other programs, or launch fewer ranks") from None
                self.processes.append(process)

    def wait(self, seconds):
        """Return when a rank ends, or after `seconds`."""
        if client.START_METHOD == "forkserver":
            connections = [process.connection for process in self.processes if process.exitcode is None]
            connection.wait(connections, seconds)
        else:  # nothing tells when a child has ended: look often
            time.sleep(min(seconds, 0.02))

    def exitcodes(self):
        """Each rank's exit code, negative for a signal, None while it runs."""
        return [process.poll() for process in self.processes]

    def ask(self, seconds=1.0):
        """Have the running ranks write down what they are doing; wait up to `seconds` for their answers."""
        if SAY_WHAT_YOU_DO is not None:
            stacks = [Files(self.folder, rank).stack for rank, code in enumerate(self.exitcodes()) if code is None]
            self._signal(SAY_WHAT_YOU_DO)
            until(lambda: all(map(is_whole, stacks)), seconds)

    def end(self):
        """End every rank, and every process that a rank has left behind; free what was held for them."""
        end_groups([process.pid for process in self.processes], self._running)
        for process in self.processes:
            if process.poll() is None and not hasattr(os, "killpg"):  # Windows has no groups
                process.kill()
            until(lambda process=process: process.poll() is not None, 10)  # one that waits for a broken disk stays
            process.close()

    def _running(self):
        return [process.pid for process in self.processes if process.poll() is None]

    def _signal(self, number):
        for pid in self._running():
            _tell(os.kill, pid, number)


def is_whole(stack):
    """Whether a rank's answer is all there: `faulthandler` writes it line by line, the main thread last.

    Its outermost line is that of `python -c`, by which ranks and their server start; a very deep stack breaks off.
    """
    with contextlib.suppress(FileNotFoundError):
        return stack.read_bytes().endswith((b'File "<string>", line 1 in <module>\n', b"  ...\n"))
    return False


def end_groups(leaders, running):
    """End the process groups that are named after their `leaders`: ranks, and what they have started.

    All are asked first, and given a moment to save what they have. A rank is killed before its group, because
    the group holds the resource tracker of multiprocessing, which frees a dead rank's shared memory.

    `running()` takes note of leaders that have ended, and returns the others: their numbers are still theirs.
    """
    def groups():
        return [pid for pid in leaders if _is_a_group(pid)]

    def nothing_is_left():
        return not running() and not groups()

    if not hasattr(os, "killpg"):
        return
    with_a_group = groups()
    for pid in with_a_group:
        _tell(os.killpg, pid, signal.SIGTERM)
    for pid in {*running()} - {*with_a_group}:  # it has just started
        _tell(os.kill, pid, signal.SIGTERM)
    until(nothing_is_left, SECONDS_AFTER_SIGTERM)
    for pid in [*running()]:
        _tell(os.kill, pid, signal.SIGKILL)
    until(nothing_is_left, _SECONDS_FOR_THE_TRACKER)
    for pid in groups():
        _tell(os.killpg, pid, signal.SIGKILL)


def _tell(kill, pid, number):
    with contextlib.suppress(OSError):  # it has ended meanwhile
        kill(pid, number)


def _is_a_group(pid):
    try:
        os.killpg(pid, 0)
    except OSError:  # none is left; on macOS, none but one whose end nobody has taken note of
        return False
    return True


@contextlib.contextmanager
def interrupts_held():
    """Hold KeyboardInterrupt back until the block is done: a half-started rank would be nobody's to end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are only ever handled in the main thread
        return
    interrupts = []
    handler_before = signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler_before)
    if interrupts:
        raise KeyboardInterrupt
