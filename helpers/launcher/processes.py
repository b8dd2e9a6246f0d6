"""The processes of one run: start them all, watch them, ask what they are doing, end them and all they have started."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import connection

from helpers.hardware import free_port
from helpers.launcher import rank as rank_module
from helpers.launcher import server, workarounds
from helpers.reporting import REPORT_FILE, RUN_FOLDER


class Processes:
    """`nprocs` ranks that run the work lying in `folder`."""

    def __init__(self, nprocs, folder):
        self.nprocs, self.folder = nprocs, folder
        self.files = [rank_module.Files(folder, rank) for rank in range(nprocs)]
        self.processes, self.goodbyes, self.left = [], [], set()

    def start(self):
        """Start every rank.

        Raises:
            RuntimeError: a process could not be started; those before it are still running.
        """
        for last_try in (False, True):
            try:
                return self._start_all()
            except (OSError, EOFError) as error:
                failed = len(self.processes)
                self.end()
                if last_try:
                    raise RuntimeError(f"rank {failed} of {self.nprocs} could not be started ({error}); close other "
                                       "programs, or launch fewer ranks") from None
            server.replace()  # somebody may have killed the fork server at this very moment, or removed its socket

    def _start_all(self):
        context = multiprocessing.get_context(server.START_METHOD)
        port = free_port()  # for scripts that open a store of their own at MASTER_PORT
        parent = workarounds.server_pid() if server.START_METHOD == "forkserver" else None
        for rank in range(self.nprocs):
            with server.lock, workarounds.main_left_alone():
                environment = rank_environment(rank, self.nprocs, port, self.folder, self.files[rank])
                goodbye, ranks_end = context.Pipe(duplex=False)
                process = context.Process(target=rank_module.main, name=f"rank {rank}",
                                          args=(str(self.folder), rank, environment, parent, ranks_end))
                with server.ours():
                    process.start()
                ranks_end.close()
            self.processes.append(process)
            self.goodbyes.append(goodbye)
            if parent not in (None, workarounds.server_pid()):
                raise OSError("the fork server has died, and this rank takes itself for an orphan")

    def wait(self, seconds):
        """Return when a rank ends, or after `seconds`."""
        signs = [sign for rank, code in enumerate(self.exitcodes()) if code is None
                 for sign in (self.processes[rank].sentinel, self.goodbyes[rank])]
        connection.wait(filter(None, signs), seconds)

    def exitcodes(self):
        """Each rank's exit code, negative for a signal, None while it runs; 0 for one that has said goodbye."""
        return [0 if self._has_left(rank) else process.exitcode for rank, process in enumerate(self.processes)]

    def _has_left(self, rank):
        goodbye = self.goodbyes[rank]
        if goodbye:
            with contextlib.suppress(EOFError, BrokenPipeError):  # it has ended without a word: the exit code tells
                if not goodbye.poll():  # on Windows, this raises the second (python/cpython#85180)
                    return False
                goodbye.recv_bytes()
                self.left.add(rank)
            goodbye.close()
            self.goodbyes[rank] = None
        return rank in self.left

    def ask(self, seconds=1.0):
        """Have the running ranks write down what they are doing; wait up to `seconds` for their answers."""
        if rank_module.SAY_WHAT_YOU_DO is None:
            return
        asked = [rank for rank, code in enumerate(self.exitcodes()) if code is None]
        self._signal(rank_module.SAY_WHAT_YOU_DO)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(self._answered(rank) for rank in asked):
            time.sleep(0.01)

    def _answered(self, rank):
        with contextlib.suppress(OSError):
            return self.files[rank].stack.stat().st_size > 0
        return False

    def interrupt(self, seconds):
        """Interrupt the ranks as Ctrl-C would, and give them up to `seconds` to leave in good order."""
        self._signal(signal.SIGINT)
        end = time.monotonic() + seconds
        while None in self.exitcodes() and time.monotonic() < end:
            self.wait(end - time.monotonic())

    def end(self):
        """End every rank, and every process that a rank has left behind, at once; free what was held for them."""
        if hasattr(os, "killpg"):
            self._signal(signal.SIGKILL, os.killpg)
        codes = self.exitcodes()
        for process, code in zip(self.processes, codes, strict=True):
            if code is None:
                process.kill()
        for rank, process in enumerate(self.processes):
            if rank in self.left:
                continue  # multiprocessing forgets it at the next start
            process.join(10)  # bounded: a process that waits in the kernel for a broken disk or GPU outlives SIGKILL
            if process.exitcode is None:
                print(f"{process.name} (process {process.pid}) cannot be ended; it may wait for a broken device",
                      file=sys.stderr)
            else:
                process.close()
        for goodbye in filter(None, self.goodbyes):
            goodbye.close()
        self.processes, self.goodbyes, self.left = [], [], set()

    def _signal(self, number, send=os.kill):
        for process in self.processes:
            # A rank that has ended may have left its group behind, but its own number may be another's by now.
            if send is not os.kill or process.exitcode is None:
                with contextlib.suppress(OSError):
                    send(process.pid, number)


def rank_environment(rank, nprocs, port, folder, files):
    """The environment of one rank: the notebook's of this moment, and what torchrun would set."""
    everything = {
        "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "ROLE_RANK": rank, "ROLE_NAME": "default",
        "WORLD_SIZE": nprocs, "LOCAL_WORLD_SIZE": nprocs, "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": nprocs,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": folder.name, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        RUN_FOLDER: folder, REPORT_FILE: files.reports,
    }
    # One thread per rank, as torchrun sets it, unless the learner has; a single rank may use all cores. And traffic
    # stays on this machine: without these, gloo and NCCL would listen on the address of the host's name.
    defaults = {"OMP_NUM_THREADS": 1} if nprocs > 1 else {}
    if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        defaults |= dict.fromkeys(["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"], loopback)
    return {name: str(value) for name, value in {**defaults, **os.environ, **everything}.items()}


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
