"""`launch`: run a script or a function in N ranks, show what they print, and bring back what they return."""

import contextlib
import json
import pickle
import shutil
import sys
import time
from dataclasses import dataclass

from helpers.launcher import arguments, asking, client, errors, output, sending
from helpers.launcher.files import RESERVED_BYTES, Files, run_folder
from helpers.launcher.processes import Processes, interrupts_held
from helpers.ports import free_port
from helpers.reporting import RUN_FOLDER

TIMEOUT = 600  #: Seconds after which a run that has not ended is taken for a hang.
ROOT_WAIT = 1.0  #: Seconds to wait for the root of a failure, once a rank tells that another one is gone.
PEERS_WAIT = 0.3  #: Seconds in which the others, once one has failed, may say that they have lost a peer.
END_WAIT = 5.0  #: Seconds that a rank that has failed is given for its exit functions and threads.
OFTEN = 0.02  #: Seconds between two looks at the logs, in the first second of a run.
RARELY = 0.1  #: And after it.


@dataclass
class Run:
    """What a run has left.

    Attributes:
        results: By rank: what the function returned; for a script, the list of rows that it reported.
        logs: By rank: what it printed, stdout and stderr together, as text.
        reports: By rank: the rows that it reported, as dicts.
        seconds: From the call of `launch` to its return.
    """

    results: list
    logs: list
    reports: list
    seconds: float

    def __repr__(self):
        ranks = "1 rank" if len(self.results) == 1 else f"{len(self.results)} ranks"
        return f"<Run of {ranks}>"


def launch(work, nprocs=2, args=(), kwargs=None, *, module=False, env=None, timeout=TIMEOUT, gpus=0,
           show=True, on_report=None, stop=None, grace=0):
    """Run `work` in `nprocs` new processes, one per rank, on this machine, and wait for them.

    Each rank finds RANK, LOCAL_RANK, WORLD_SIZE and the rest of torchrun's variables in its environment, and
    `torch.distributed.init_process_group()` without arguments forms the group. (What differs: docs/launch.md)

    Args:
        work: A script that torchrun can run: a path, or the name of one of the lessons'. Or a
            function, also one of the notebook; every rank calls `work(*args, **kwargs)`.
        nprocs: The number of ranks.
        args: A script's command line, as a list; a function's arguments, the same for every rank.
        kwargs: A function's keyword arguments, as a dict.
        module: Whether `work` is the name of a module, which is run as `python -m` would (`torchrun -m`).
        env: Environment variables for this run alone, {name: text}; None takes a variable away.
        timeout: Seconds after which a run that has not ended is ended.
        gpus: The GPUs that the ranks need together; more than this machine has is refused.
        show: Whether to show what the ranks print. A notebook shows the last lines while they run and all,
            by rank, in the end; a terminal shows them as they come. Or an object with `Display`'s methods.
        on_report: Called as `on_report(rank, row)` for each row that a rank reports, while it runs.
        stop: A `threading.Event` that ends the run when it is set, as an interrupt would.
        grace: Seconds in which the others, once a rank has failed, may finish or fail as well; at least 0.3.

    Returns: a `Run`.

    Raises:
        RankError: A rank raised, died or left early, or the time was up. The other ranks have been ended.
        KeyboardInterrupt: The cell was interrupted, or `stop` was set. All ranks have been ended.
        TypeError, ValueError, OSError, SyntaxError, RuntimeError: Refused, with advice; nothing was started that
            still runs.
    """
    began = time.monotonic()
    arguments.refuse_inside_a_rank()
    nprocs = arguments.checked_nprocs(nprocs, gpus)
    timeout = arguments.checked_timeout(timeout)
    environment = arguments.checked_environment(env)
    what_to_do = arguments.packed_work(work, args, kwargs, module)
    what_to_do |= {"cells": arguments.sources_of_cells(), "folder": arguments.current_folder()}
    client.wait_until_ready(environment)  # here, where it can be interrupted
    with _temporary_folder() as folder:
        what_to_do["environment"] = rank_environment(environment, nprocs, folder)
        with _advice_on_disk():
            (folder / "work").write_bytes(pickle.dumps(what_to_do))
            watch = _Watch(nprocs, folder, output.display_for(show), on_report, is_script="script" in what_to_do)
        # Left from right to left: the ranks end first, and then their last words are read.
        with watch, Processes(nprocs, folder, environment) as ranks:
            ranks.start()
            failures = watch.until_done(ranks, timeout, stop, grace)
        results = watch.results(failures)
    if failures:
        message = errors.message_of(failures, nprocs, results)
        if arguments.wants_a_rank(work):
            message += f"\n({arguments.NO_RANK}.)"
        raise errors.RankError(message, failures, watch.logs, results)
    return Run([results[rank] for rank in range(nprocs)], watch.logs, watch.reports, time.monotonic() - began)


def rank_environment(environment, nprocs, folder):
    """The environment of all ranks: the notebook's, and what torchrun would set but a rank's number."""
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": 1}
    if nprocs > 1:
        defaults["OMP_NUM_THREADS"] = 1  # as torchrun sets it, unless the learner has set another number
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:  # without these, gloo and NCCL would listen on the address of the host's name
        defaults |= dict.fromkeys(["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"], loopback)
    from_torchrun = {
        "GROUP_RANK": 0, "ROLE_NAME": "default", "WORLD_SIZE": nprocs, "LOCAL_WORLD_SIZE": nprocs,
        "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": nprocs,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),  # for scripts that open a store there
        "TORCHELASTIC_RUN_ID": folder.name, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    everything = {**defaults, **environment, **from_torchrun, RUN_FOLDER: folder}
    return {name: str(value) for name, value in everything.items()}


class _Watch:
    """Looks after running ranks: what they print, report and ask, and whether one has failed.

    A `with` block leaves the logs on display, however it is left.
    """

    def __init__(self, nprocs, folder, display, on_report, is_script):
        self.display = display
        self.on_report = on_report
        self.is_script = is_script
        self.files = [Files(folder, rank) for rank in range(nprocs)]
        for files in self.files:
            files.log.touch()
            files.reports.touch()
            files.reserve.write_bytes(b" " * RESERVED_BYTES)  # before the first rank can fill the disk
        self.tails = [output.Tail(files.log) for files in self.files]
        self.report_tails = [output.Tail(files.reports, longest_line=None) for files in self.files]
        self.reports = [[] for _ in self.files]
        self.logs = []
        self.asked = 0.0  # seconds that a person has thought about answers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with interrupts_held():
            self._finish()

    def until_done(self, ranks, timeout, stop, grace):
        """Wait for all ranks; return the failures, the first one first, as soon as there is one."""
        began = time.monotonic()
        failed_since = None
        pause = OFTEN
        while True:
            ranks.wait(pause)
            self._look()
            self._answer()
            codes = ranks.exitcodes()
            failures = self._failures(codes)
            all_have_ended = None not in codes
            now = time.monotonic()
            if failures:
                failed_since = failed_since or now
                if all_have_ended or now >= failed_since + _patience(failures, codes, grace):
                    return failures
            elif all_have_ended:
                return []
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt("stopped")
            if now > began + self.asked + timeout:
                return failures or self._hangs(ranks, codes, timeout)
            if now > began + 1:
                pause = RARELY

    def _failures(self, codes):
        """The failures so far, the first one first."""
        failures = []
        for rank, code in enumerate(codes):
            failure = errors.failure_of(rank, self.files[rank], code, self.is_script)
            if failure is not None:
                failures.append(failure)
        return errors.root_first(failures)

    def _hangs(self, ranks, codes, timeout):
        ranks.ask()  # which ends a rank that has become another program: a hang all the same
        return [errors.hang_of(rank, self.files[rank], timeout) for rank, code in enumerate(codes) if code is None]

    def _look(self):
        """Pass on what the ranks have printed and reported since the last look; return whether they have."""
        tails = [*self.tails, *self.report_tails]
        positions_before = [tail.position for tail in tails]
        lines = []
        unfinished = {}
        for rank, tail in enumerate(self.tails):
            lines += [(rank, line) for line in tail.new_lines()]
            tail.free_middle()
            unfinished[rank] = tail.unfinished
        self.display.update(lines, unfinished)
        for rank, tail in enumerate(self.report_tails):
            for line in tail.new_lines():
                row = json.loads(line)
                self.reports[rank].append(row)
                if self.on_report:
                    self.on_report(rank, row)
        return [tail.position for tail in tails] != positions_before

    def _answer(self):
        """Answer what the ranks ask; a person who thinks about it uses up no time."""
        for rank, files in enumerate(self.files):
            if files.question.exists():
                began = time.monotonic()
                self._look()
                self.display.show_now()  # what has led to the question
                asking.answer(rank, files)
                self.asked += time.monotonic() - began

    def _finish(self):
        """Read the rest of the logs, and leave them on display."""
        for tail in self.tails:
            tail.stop_growing(keep=2**20)
        for tail in self.report_tails:
            tail.stop_growing()
        self.logs = [output.read_log(files.log) for files in self.files]
        try:
            while self._look():
                pass
        finally:  # on_report is the learner's, and may raise
            for tail in (*self.tails, *self.report_tails):
                tail.file.close()
            self.display.finish(self.logs)

    def results(self, failures):
        """What the ranks that ended well returned, {rank: result}; for a script, what they reported."""
        failed = {failure.rank for failure in failures if not failure.is_hang}
        results = {}
        for rank, files in enumerate(self.files):
            if rank in failed:
                continue
            ended_well = files.result.exists() or not failures  # os._exit(0) leaves no result
            if self.is_script and ended_well:
                results[rank] = self.reports[rank]
            elif files.result.exists():  # also of a rank that hangs in a thread of its own
                try:
                    results[rank] = sending.unpacked(files.result.read_bytes())
                except Exception as error:
                    if not failures:
                        raise errors.unreadable(rank, error, self.logs) from None
        return results


def _patience(failures, codes, grace):
    """Seconds to wait for the others, once a rank has failed."""
    if all(codes[failure.rank] is None for failure in failures):
        return max(grace, END_WAIT)  # for its threads and exit functions
    if failures[0].is_consequence:
        return max(grace, ROOT_WAIT)  # for the rank that it has lost
    return max(grace, PEERS_WAIT)


@contextlib.contextmanager
def _temporary_folder():
    with _advice_on_disk():
        folder = run_folder()
    try:
        yield folder
    finally:
        with interrupts_held():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _advice_on_disk():
    try:
        yield
    except OSError as error:
        advice = "set TMPDIR to a folder that you can write, with free space, and restart the kernel"
        raise OSError(error.errno, f"{error.strerror}: ranks cannot be launched; {advice}", error.filename) from None
