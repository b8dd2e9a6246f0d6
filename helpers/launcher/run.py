"""`launch`: run a script or a function in N ranks, show what they print, and bring back what they return."""

import contextlib
import errno
import json
import pickle
import shutil
import time
from dataclasses import dataclass, field

from helpers.launcher import arguments, errors, output, server
from helpers.launcher.processes import Processes, interrupts_held

#: Seconds after which a run that has not ended is taken for a hang.
TIMEOUT = 600
#: Seconds that an interrupted rank is given to leave in good order.
LEAVE = 1.0
#: Seconds to wait for the root of a failure, once a rank has told only that another one is gone.
ROOT_WAIT = 1.0
#: Seconds between two looks at the ranks' logs: often at first, then more rarely, for looking takes time from training.
PERIODS = (0.02, 0.1)


@dataclass
class Run:
    """What a run has left."""

    results: list
    """By rank: what the function returned; for a script, the list of rows that it reported."""
    logs: list = field(repr=False)
    """By rank: what it printed, stdout and stderr together, as text."""
    reports: list = field(repr=False)
    """By rank: the rows that it reported, as dicts."""
    seconds: float = field(repr=False)
    """From the call of `launch` to the last rank's end."""

    def __repr__(self):
        return f"<Run of {len(self.results)} rank{'s' * (len(self.results) != 1)}>"  # the same in every execution


def launch(work, nprocs=2, args=(), *, timeout=TIMEOUT, gpus=0, show=True, on_report=None, stop=None,
           grace=0):
    """Run `work` in `nprocs` new processes, one per rank, on this machine, and wait for them.

    Each rank finds RANK, LOCAL_RANK, WORLD_SIZE and the rest of torchrun's variables in its environment, and
    `torch.distributed.init_process_group()` without arguments forms the group.

    Args:
        work: A script, anything that `torchrun SCRIPT` runs: a path, or the name of one of helpers/workers/. Or a
            function, one defined in the notebook included; it is called as `work(*args)` in every rank.
        nprocs: The number of ranks.
        args: A script's command line, as a list; a function's arguments, the same for every rank.
        timeout: Seconds after which a run that has not ended is ended.
        gpus: The GPUs that the ranks need together; more than this machine has is refused.
        show: Whether to show what the ranks print. A notebook shows the last lines while they run and all of them,
            ordered by rank, in the end; a terminal shows them as they come. Or an object with the two methods of
            `helpers.launcher.output.Quiet`.
        on_report: Called as `on_report(rank, row)` for each row that a rank reports, while it runs.
        stop: A `threading.Event` that ends the run when it is set, as an interrupt would.
        grace: Seconds that the other ranks are given, once one has failed, to finish or to fail as well.

    Returns:
        A `Run`.

    Raises:
        RankError: A rank raised, died or left early, or the time was up. The other ranks have been ended.
        KeyboardInterrupt: The cell was interrupted, or `stop` was set. All ranks have been ended.
        TypeError, ValueError, FileNotFoundError, SyntaxError, RuntimeError, OSError: Refused before anything started;
            the message says what to do instead.
    """
    began = time.monotonic()
    arguments.refuse_inside_a_rank()
    nprocs = arguments.checked_nprocs(nprocs, gpus)
    timeout = arguments.checked_timeout(timeout)
    is_function = callable(work)
    work = arguments.packed_work(work, args)
    with _advice_on_disk():
        server.wait_until_ready()
        folder = server.run_folder()
    ranks = Processes(nprocs, folder)
    try:
        with _advice_on_disk(), open(folder / "work", "wb") as file:
            pickle.dump(work, file)
        display = show if hasattr(show, "finish") else output.suitable_display() if show else output.Quiet()
        watch = _Watch(ranks, display, on_report, grace)
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
        if failures:
            raise errors.RankError(_message(failures, nprocs, ranks.files), failures, logs)
        results = [_unpacked(rank, files, logs) for rank, files in enumerate(ranks.files)]
        return Run(results if is_function else watch.reports, logs, watch.reports, time.monotonic() - began)
    finally:
        with interrupts_held():
            ranks.end()
            shutil.rmtree(folder, ignore_errors=True)


class _Watch:
    """Looks after running ranks: what they print, report, and whether one has failed."""

    def __init__(self, ranks, display, on_report, grace):
        self.ranks, self.display, self.on_report, self.grace = ranks, display, on_report, grace
        self.tails = [output.Tail(files.log) for files in ranks.files]
        self.report_tails = [output.Tail(files.reports, longest_line=None) for files in ranks.files]
        self.reports = [[] for _ in ranks.files]

    def until_done(self, timeout, stop):
        """Wait for all ranks; return the failures, the first one first, as soon as there is one."""
        began = time.monotonic()
        grace_ends = root_due = None
        while True:
            self.ranks.wait(PERIODS[time.monotonic() - began > 1])
            self.look()
            codes = self.ranks.exitcodes()
            found = [errors.failure_of(rank, self.ranks.files[rank], code) for rank, code in enumerate(codes)]
            failures = errors.first_first(failure for failure in found if failure)
            now = time.monotonic()
            if any(codes[failure.rank] is not None for failure in failures):  # a rank that fails stays for the others
                grace_ends, root_due = grace_ends or now + self.grace, root_due or now + ROOT_WAIT
                if None not in codes or now >= (root_due if failures[0].is_consequence else grace_ends):
                    return failures
            elif None not in codes:
                return []
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt("stopped")
            if now > began + timeout:
                return failures or self._hung(timeout)

    def look(self):
        """Pass on what the ranks have printed and reported since the last look; return whether there was anything."""
        before = sum(tail.position for tail in (*self.tails, *self.report_tails))
        lines = [(rank, line) for rank, tail in enumerate(self.tails) for line in tail.new_lines()]
        self.display.update(lines, {rank: tail.unfinished for rank, tail in enumerate(self.tails)})
        rows = []
        for rank, tail in enumerate(self.report_tails):
            for row in tail.new_lines():
                with contextlib.suppress(ValueError):  # half a row: the disk was full
                    rows.append((rank, json.loads(row)))
        for rank, row in rows:
            self.reports[rank].append(row)
            if self.on_report:
                self.on_report(rank, row)
        return sum(tail.position for tail in (*self.tails, *self.report_tails)) > before

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
                tail.close()
            self.display.finish(logs)
        return logs

    def _hung(self, timeout):
        codes = self.ranks.exitcodes()
        self.ranks.ask()  # which ends a rank that has become another program
        failures = []
        for rank, code in enumerate(codes):
            if code is None:
                files = self.ranks.files[rank]
                done = "has done its work but does not end; it is " if files.result.exists() else "was "
                failures.append(errors.Failure(rank, None, f"no result after {timeout:g} s: rank {rank} {done}"
                                                           f"{errors.doing(files.stack) or 'busy in compiled code'}"))
        return failures


def _message(failures, nprocs, files):
    first = failures[0]
    if first.exitcode is None:
        waits = [f.message.partition(": ")[2] for f in failures]
        message = "\n".join([first.message, *(f"and {wait}" for wait in waits[1:])])
        if len(failures) == nprocs > 1 and len({wait.partition(" at ")[2] for wait in waits}) == 1:
            message += ("\nAll ranks are at the same line: if it is a collective, have their tensors the same shape "
                        "and dtype?")
        return message
    message = f"rank {first.rank} of {nprocs} failed first (exit code {first.exitcode}): {first.message}"
    gone = [rank for rank in range(nprocs) if files[rank].result.exists()]
    if first.is_consequence and gone:
        message += (f"\nRank {gone[0]} had finished by then: does every rank call the same collectives, "
                    "equally often?")
    return message


def _unpacked(rank, files, logs):
    try:
        return pickle.loads(files.result.read_bytes())
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
        if error.errno == errno.EMFILE:
            advice = "this notebook has too many files open; restart the kernel"
        raise OSError(error.errno, f"{error}: ranks cannot be launched; {advice}") from None
