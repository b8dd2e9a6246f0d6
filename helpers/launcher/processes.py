"""The processes of one run: start, watch and ask them, end them and everything that they have started."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import connection

from helpers.launcher import rank as rank_module
from helpers.launcher import server
from helpers.launcher.files import Files, until

#: Seconds that a process is given after SIGTERM, to save what it has.
MOMENT = 3.0
#: Seconds that multiprocessing's resource tracker is given, once its rank is gone, to free shared memory.
_TRACKERS_MOMENT = 0.5


class Forked:
    """A rank that the fork server has started."""

    def __init__(self, folder, rank, environment):
        self.server, self.pid, self.connection = server.fork(folder, rank, environment)
        self.exitcode = None

    def poll(self):
        """Its exit code, negative for a signal; None while it runs."""
        if self.exitcode is None and connection.wait([self.connection], 0):
            told = self.connection.recv(64)  # nothing, if the server was killed, and its ranks with it
            self.exitcode = int(told or -signal.SIGKILL)
        return self.exitcode

    def close(self):
        self.connection.close()
        self.server.forget(self.pid)


class Spawned(subprocess.Popen):
    """A rank that imports torch itself."""

    def __init__(self, folder, rank, environment):
        code = f"from helpers.launcher import rank; rank.spawned({str(folder)!r}, {rank})"
        with open(Files(folder, rank).log, "ab") as log:
            super().__init__([sys.executable, "-u", "-c", server.BEGINNING + code], env=environment,
                             start_new_session=True, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def close(self):
        self.stdin.close()


class Processes:
    """`nprocs` ranks that run the work lying in `folder`."""

    def __init__(self, nprocs, folder, environment):
        self.nprocs, self.folder, self.environment = nprocs, folder, environment
        self.files = [Files(folder, rank) for rank in range(nprocs)]
        self.processes = []

    def start(self):
        """Start every rank. Where that cannot be, RuntimeError, and none is left running."""
        kind = Forked if server.START_METHOD == "forkserver" else Spawned
        try:
            for rank in range(self.nprocs):
                self.processes.append(kind(self.folder, rank, self.environment))
        except OSError as error:
            failed = len(self.processes)
            self.end()
            raise RuntimeError(f"rank {failed} of {self.nprocs} could not be started ({error}); "
                               "close other programs, or launch fewer ranks") from None

    def wait(self, seconds):
        """Return when a rank ends, or after `seconds`."""
        running = [process for process in self.processes if process.poll() is None]
        if all(isinstance(process, Forked) for process in running):
            connection.wait([process.connection for process in running], seconds)
        else:
            time.sleep(min(seconds, 0.02))

    def exitcodes(self):
        """Each rank's exit code, negative for a signal, None while it runs."""
        return [process.poll() for process in self.processes]

    def ask(self, seconds=1.0):
        """Have the running ranks write down what they are doing; wait up to `seconds` for their answers."""
        if rank_module.SAY_WHAT_YOU_DO is not None:
            stacks = [self.files[rank].stack for rank, code in enumerate(self.exitcodes()) if code is None]
            self._signal(rank_module.SAY_WHAT_YOU_DO)
            until(lambda: all(stack.exists() and stack.stat().st_size for stack in stacks), seconds)

    def interrupt(self, seconds):
        """Interrupt the ranks as Ctrl-C would, and give them up to `seconds` to leave in good order."""
        self._signal(signal.SIGINT)
        until(lambda: None not in self.exitcodes(), seconds)

    def end(self):
        """End every rank, and every process that a rank has left behind; free what was held for them."""
        end_groups([process.pid for process in self.processes], self._running)
        for process in self.processes:
            if process.poll() is None and not hasattr(os, "killpg"):  # Windows has no groups
                process.kill()
            until(lambda one=process: one.poll() is not None, 10)  # one that waits for a broken disk stays
            process.close()
        self.processes = []

    def _running(self):
        return [process.pid for process in self.processes if process.poll() is None]

    def _signal(self, number):
        for pid in self._running():
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def end_groups(pids, running):
    """End the process groups that are named after their leaders, `pids`: ranks, and what they have started.

    All are asked first, and given a moment to save what they have. A rank is killed before its group, because
    the group holds the resource tracker of multiprocessing, which frees a dead rank's shared memory.

    `running()` takes note of leaders that have ended, and returns the others: their numbers are still theirs.
    """
    def nothing_is_left():
        return not running() and not any(map(_is_a_group, pids))

    def tell(number, groups):
        """Signal these groups, and running leaders that are in none of them: they may have just started."""
        groups = set(groups)
        for kill, some in ((os.killpg, groups), (os.kill, {*running()} - groups)):
            for pid in some:
                with contextlib.suppress(OSError):
                    kill(pid, number)

    if hasattr(os, "killpg"):
        tell(signal.SIGTERM, filter(_is_a_group, pids))
        until(nothing_is_left, MOMENT)
        tell(signal.SIGKILL, [])
        until(nothing_is_left, _TRACKERS_MOMENT)
        tell(signal.SIGKILL, filter(_is_a_group, pids))


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
    held = []
    before = signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
