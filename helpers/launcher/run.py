"""`launch`: run a script or a function in N ranks, show what they print, and bring back what they return."""

import contextlib
import json
import os
import pickle
import shutil
import sys
import time
from dataclasses import dataclass

from helpers.hardware import free_port
from helpers.launcher import arguments, asking, errors, output, sending, server
from helpers.launcher.processes import Processes, interrupts_held
from helpers.reporting import RUN_FOLDER

TIMEOUT = 600  #: Seconds after which a run that has not ended is taken for a hang.
LEAVE = 1.0  #: Seconds that an interrupted rank is given to leave in good order.
ROOT_WAIT = 1.0  #: Seconds to wait for the root of a failure, once a rank tells that another one is gone.
PEERS_WAIT = 0.3  #: Seconds in which the others, once one has failed, may say that they have lost a peer.
END_WAIT = 5.0  #: Seconds that a rank that has failed is given for its exit functions and threads.
OFTEN, RARELY = 0.02, 0.1  #: Seconds between two looks at the logs: in the first second, and after it.


@dataclass
class Run:
    """What a run has left.

    Attributes:
        results: By rank: what the function returned; for a script, the list of rows that it reported.
        logs: By rank: what it printed, stdout and stderr together, as text.
        reports: By rank: the rows that it reported, as dicts.
        seconds: From the call of `launch` to the last rank's end.
    """

    results: list
    logs: list
    reports: list
    seconds: float

    def __repr__(self):
        return f"<Run of {len(self.results)} rank{'s' * (len(self.results) != 1)}>"


def launch(work, nprocs=2, args=(), kwargs=None, *, module=False, env=None, timeout=TIMEOUT, gpus=0,
           show=True, on_report=None, stop=None, grace=0):
    """Run `work` in `nprocs` new processes, one per rank, on this machine, and wait for them.

    Each rank finds RANK, LOCAL_RANK, WORLD_SIZE and the rest of torchrun's variables in its environment, and
    `torch.distributed.init_process_group()` without arguments forms the group. (What differs: docs/launch.md)

    Args:
        work: A script that torchrun can run: a path, or the name of one of notebooks/lessons/. Or a
            function, also one of the notebook; every rank calls `work(*args, **kwargs)`.
        nprocs: The number of ranks.
        args: A script's command line, as a list; a function's arguments, the same for every rank.
        kwargs: A function's keyword arguments, as a dict.
        module: Whether `work` is the name of a module, which is run as `python -m` would (`torchrun -m`).
        env: Environment variables for this run alone, {name: text}; None takes a variable away.
        timeout: Seconds after which a run that has not ended is ended.
        gpus: The GPUs that the ranks need together; more than this machine has is refused.
        show: Whether to show what the ranks print. A notebook shows the last lines while they run and all,
            by rank, in the end; a terminal shows them as they come. Or an object with `Quiet`'s methods.
        on_report: Called as `on_report(rank, row)` for each row that a rank reports, while it runs.
        stop: A `threading.Event` that ends the run when it is set, as an interrupt would.
        grace: Seconds in which the others, once a rank has failed, may finish or fail as well; at least 0.3.

    Returns: a `Run`.

    Raises:
        RankError: A rank raised, died or left early, or the time was up. The other ranks have been ended.
        KeyboardInterrupt: The cell was interrupted, or `stop` was set. All ranks have been ended.
        TypeError, ValueError, OSError, SyntaxError, RuntimeError: Refused, with advice; nothing was started.
    """
    began = time.monotonic()
    arguments.refuse_inside_a_rank()
    nprocs = arguments.checked_nprocs(nprocs, gpus)
    timeout = arguments.checked_timeout(timeout)
    environment = arguments.checked_environment(env)
    packed = arguments.packed_work(work, args, kwargs, module)
    with _advice_on_disk():
        server.wait_until_ready(environment)
        folder = server.run_folder()
    ranks = Processes(nprocs, folder, environment)
    try:
        work_of_all = {**packed, "cells": arguments.sources_of_cells(), "folder": os.getcwd(),
                       "environment": rank_environment(environment, nprocs, folder)}
        with _advice_on_disk():
            (folder / "work").write_bytes(pickle.dumps(work_of_all))
        kind = output.Quiet if not show else output.Notebook if output.in_a_notebook() else output.Terminal
        display = show if hasattr(show, "finish") else kind()
        watch = _Watch(ranks, display, on_report, grace, is_script="script" in packed)
        try:
            with interrupts_held():
                ranks.start()
            failures = watch.until_done(timeout, stop)
        except KeyboardInterrupt:
            with interrupts_held():
                ranks.interrupt(LEAVE)
            raise
        finally:
            with interrupts_held():
                ranks.end()
                logs = watch.finish()
        results = watch.results(failures, logs)
        if failures:
            note = f"\n({arguments.NO_RANK}.)" if arguments.wants_a_rank(work) else ""
            raise errors.RankError(_message(failures, nprocs, results) + note, failures, logs, results)
        return Run([results[rank] for rank in range(nprocs)], logs, watch.reports, time.monotonic() - began)
    finally:
        with interrupts_held():
            ranks.end()
            shutil.rmtree(folder, ignore_errors=True)


def rank_environment(environment, nprocs, folder):
    """The environment of all ranks: the notebook's, and what torchrun would set but a rank's number."""
    everything = {
        "GROUP_RANK": 0, "ROLE_NAME": "default", "WORLD_SIZE": nprocs, "LOCAL_WORLD_SIZE": nprocs,
        "GROUP_WORLD_SIZE": 1, "ROLE_WORLD_SIZE": nprocs,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),  # for scripts that open a store there
        "TORCHELASTIC_RUN_ID": folder.name, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_USE_AGENT_STORE": False, RUN_FOLDER: folder,
    }
    # Several ranks have one thread each, as torchrun sets it, unless the learner has set another number.
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, **({"OMP_NUM_THREADS": 1} if nprocs > 1 else {})}
    # Without these, gloo and NCCL would listen on the address of the host's name.
    if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        defaults |= dict.fromkeys(["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"], loopback)
    return {name: str(value) for name, value in {**defaults, **environment, **everything}.items()}


class _Watch:
    """Looks after running ranks: what they print, report and ask, and whether one has failed."""

    def __init__(self, ranks, display, on_report, grace, is_script):
        self.ranks, self.display, self.on_report = ranks, display, on_report
        self.grace, self.is_script = grace, is_script
        for files in ranks.files:
            files.log.touch()
            files.reports.touch()
        self.tails = [output.Tail(files.log) for files in ranks.files]
        self.report_tails = [output.Tail(files.reports, longest_line=None) for files in ranks.files]
        self.reports = [[] for _ in ranks.files]
        self.asked = 0.0  # seconds that a person has thought about answers

    def until_done(self, timeout, stop):
        """Wait for all ranks; return the failures, the first one first, as soon as there is one."""
        began, failed_since = time.monotonic(), None
        while True:
            self.ranks.wait(OFTEN if time.monotonic() < began + 1 else RARELY)
            self.look()
            self.answer()
            codes = self.ranks.exitcodes()
            failures = self.failures(codes)
            now = time.monotonic()
            if failures:
                failed_since = failed_since or now
                if None not in codes or now >= failed_since + self._patience(failures, codes):
                    return failures
            elif None not in codes:
                return []
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt("stopped")
            if now > began + self.asked + timeout:
                return failures or self._hung(timeout)

    def failures(self, codes):
        """The failures so far, the first one first."""
        failures = [errors.failure_of(rank, self.ranks.files[rank], code, self.is_script)
                    for rank, code in enumerate(codes)]
        return errors.first_first(filter(None, failures))

    def _patience(self, failures, codes):
        """Seconds to go on waiting once a rank has failed: its threads may still be at work."""
        if all(codes[failure.rank] is None for failure in failures):
            return END_WAIT
        return ROOT_WAIT if failures[0].is_consequence else max(self.grace, PEERS_WAIT)

    def look(self):
        """Pass on what the ranks have printed and reported since the last look; return whether they have."""
        tails = *self.tails, *self.report_tails
        before = [tail.position for tail in tails]
        lines = [(rank, line) for rank, tail in enumerate(self.tails) for line in tail.new_lines()]
        self.display.update(lines, {rank: tail.unfinished for rank, tail in enumerate(self.tails)})
        rows = [(rank, row) for rank, tail in enumerate(self.report_tails) for row in tail.new_lines()]
        for rank, row in rows:
            self.reports[rank].append(json.loads(row))
            if self.on_report:
                self.on_report(rank, self.reports[rank][-1])
        return [tail.position for tail in tails] != before

    def answer(self):
        """Answer what the ranks ask; a person who thinks about it uses up no time."""
        for rank, files in enumerate(self.ranks.files):
            if files.question.exists():
                began = time.monotonic()
                self.display.due = 0  # what has led to the question is to be seen at once
                self.look()
                asking.answer(rank, files)
                self.asked += time.monotonic() - began

    def finish(self):
        """Read the rest of the logs, leave them on display, and return them by rank."""
        for tail in self.tails:
            tail.stop_growing(keep=2**20)
        for tail in self.report_tails:
            tail.stop_growing()
        logs = [output.read_log(files.log) for files in self.ranks.files]
        try:
            while self.look():
                pass
        finally:  # on_report is the learner's, and may raise
            for tail in (*self.tails, *self.report_tails):
                tail.file.close()
            self.display.finish(logs)
        return logs

    def results(self, failures, logs):
        """What the ranks that ended well returned, {rank: result}; for a script, what they reported."""
        failed = {failure.rank for failure in failures if failure.exitcode is not None}
        done = [rank for rank, files in enumerate(self.ranks.files)
                if rank not in failed and (files.result.exists() or not failures)]
        if self.is_script:
            return {rank: self.reports[rank] for rank in done}
        return {rank: _unpacked(rank, self.ranks.files[rank], logs) for rank in done}

    def _hung(self, timeout):
        codes = self.ranks.exitcodes()
        self.ranks.ask()  # which ends a rank that has become another program
        failures = []
        for rank, code in enumerate(codes):
            if code is None:
                files = self.ranks.files[rank]
                done = "has done its work but does not end (does a thread still run?); it is "
                did = done if files.result.exists() else "was "
                doing = errors.doing(files.stack) or "busy in compiled code"
                message = f"no result after {timeout:g} s: rank {rank} {did}{doing}"
                failures.append(errors.Failure(rank, None, message))
        return failures


def _message(failures, nprocs, results):
    first = failures[0]
    if first.exitcode is None:
        waits = [f.message.partition(": ")[2] for f in failures]
        message = "\n".join([first.message, *(f"and {wait}" for wait in waits[1:])])
        places = {wait.partition(" at ")[2] for wait in waits}
        same = len(failures) == nprocs > 1 and len(places) == 1 and places != {""}
        if same:
            message += ("\nAll ranks are at the same line: if it is a collective, "
                        "have their tensors the same shape and dtype?")
        return message
    message = f"rank {first.rank} of {nprocs} failed first (exit code {first.exitcode}): {first.message}"
    if first.is_consequence and results:
        message += (f"\nRank {min(results)} had finished by then: does every rank call the same collectives, "
                    "equally often?")
    return message + errors.advice_on_gpus(first.message, nprocs)


def _unpacked(rank, files, logs):
    try:
        return sending.unpacked(files.result.read_bytes())
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        failure = errors.Failure(rank, 0, f"what rank {rank} returned cannot be read here: {why}")
        raise errors.RankError(failure.message, [failure], logs) from None


@contextlib.contextmanager
def _advice_on_disk():
    try:
        yield
    except OSError as error:
        advice = "set TMPDIR to a folder that you can write, with free space, and restart the kernel"
        raise OSError(error.errno, f"{error}: ranks cannot be launched; {advice}") from None
