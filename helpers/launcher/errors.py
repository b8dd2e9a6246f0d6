"""What went wrong in a run: `Failure`s, which are objects with fields, and all words about them; `RankError`."""

import contextlib
import json
import linecache
import os
import re
import signal
from dataclasses import dataclass, field
from typing import NamedTuple

from helpers.hardware import hardware
from helpers.launcher import sending
from helpers.places import LESSONS

#: What a rank says when another one has left it alone in a collective: never the root of a failure.
_CONSEQUENCE = re.compile(r"Connection (closed|reset) by peer|Broken pipe|Connection refused|"
                          r"Timed out waiting|Socket Timeout|Application timeout|ncclRemoteError|"
                          r"ncclSystemError|collective operation timeout")

_HINTS = {
    "SIGBUS": "with older versions of torch often: /dev/shm is full; "
              "give the container more (docker: --shm-size)",
    "SIGKILL": "often: the machine ran out of memory, and killed the rank, "
               "or the fork server and so all ranks; try fewer ranks or smaller batches",
    "SIGSEGV": "a crash in compiled code",
    "SIGABRT": "compiled code gave up; in a collective: are the tensors' dtypes the same in all ranks?",
}


class RankError(RuntimeError):
    """One or more ranks of a run failed, hung or died; the run was ended.

    Attributes:
        rank: The rank that failed first. A notebook shows its traceback.
        exitcode: Its exit code, negative for a signal; None if it was still running when the time was up.
        failures: Every rank's `Failure`, the first one first.
        logs: What each rank printed, by rank.
        results: What the ranks have returned that succeeded, {rank: result}; for a script, its reported rows.
        __cause__: The exception of that rank, where it can be made anew here, else a `RankTraceback`.
    """

    def __init__(self, message, failures, logs=(), results=None):
        super().__init__(message)
        self.failures = list(failures)
        self.logs = list(logs)
        self.results = results or {}
        first = self.failures[0]
        self.rank = first.rank
        self.exitcode = first.exitcode
        self.__cause__ = _cause(first)

    def __reduce__(self):
        return type(self), (str(self), self.failures, self.logs, self.results)

    def _render_traceback_(self):
        """What IPython shows instead of the frames of `launch`: the rank's own traceback."""
        trace = _with_cells_named(self.failures[0].traceback.rstrip())
        lines = [*trace.splitlines(), f"RankError: {self}"]
        for failure in self.failures[1:]:
            if not failure.is_hang:  # the message names those that hang
                first_line = failure.message.splitlines()[0]
                lines.append(f"  then rank {failure.rank}: {first_line[:200]}")
        return lines


class RankTraceback(Exception):
    """Carries the text of a traceback from another process."""

    def __str__(self):
        return f"\n{self.args[0]}" if self.args[0] else "the rank left no traceback"


def _cause(failure):
    """What a terminal shows above the message."""
    trace = RankTraceback(failure.traceback.rstrip())
    try:
        error = sending.unpacked(failure.packed)
    except Exception:  # its class is not known here, say
        return trace
    with contextlib.suppress(AttributeError):  # a frozen dataclass
        error.__cause__ = trace
    return error


class Line(NamedTuple):
    """Where a rank was: a line of the learner's, or, without `file`, a function of a library's."""

    function: str
    file: str = ""
    number: int = 0


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        exitcode: Negative for a signal; None if the rank was still running when the time was up.
        exception: `TypeName: text` of what the rank raised; empty if it raised nothing.
        traceback: The rank's traceback from the learner's first line on; empty if it left none.
        at: When, in seconds of the machine's monotonic clock; 0 for a rank that could no longer say.
        packed: The exception itself, packed by `sending`; empty if it could not be sent.
        line: Where the rank was when it died, or when it was asked; None if it did not say.
        limit: The seconds that the run was given.
        is_done: Whether its work was done when the time was up, and its process ran on.
    """

    rank: int
    exitcode: int | None
    exception: str = ""
    traceback: str = ""
    at: float = 0
    packed: bytes = field(default=b"", repr=False)
    line: Line | None = None
    limit: float = 0
    is_done: bool = False

    @property
    def is_hang(self):
        """Whether the rank was still running when the time was up."""
        return self.exitcode is None

    @property
    def is_consequence(self):
        """Whether this rank only noticed that another one had gone."""
        return bool(_CONSEQUENCE.search(self.exception))

    @property
    def message(self):
        """What a person reads: the exception, or a sentence."""
        if self.exception:
            return self.exception
        if self.is_hang:
            return f"no result after {self.limit:g} s: {where_was(self)}"
        if self.exitcode == 0:
            return "left before its work was done, with exit code 0 (os._exit?)"
        if self.exitcode > 0:
            return f"left without an exception, with exit code {self.exitcode} (os._exit?)"
        return _death(self)


# ------------------------------------------------------------------------------------------ from what ranks left


def failure_of(rank, files, exitcode, is_script):
    """The Failure of a rank, or None if it has not failed. `exitcode`: None while its process still runs."""
    if files.failure.exists():
        left = json.loads(files.failure.read_text())
        return Failure(rank, exitcode or left["code"], left["exception"], left["traceback"], left["at"] / 1e9,
                       bytes.fromhex(left["packed"]))
    if exitcode is None:
        return None
    if exitcode == 0 and (is_script or files.result.exists()):  # a script may end by os._exit(0), without a result
        return None
    return Failure(rank, exitcode, line=line_in(files.stack))


def hang_of(rank, files, seconds):
    """The Failure of a rank that still runs after `seconds`, and that was asked what it is doing."""
    return Failure(rank, None, line=line_in(files.stack), limit=seconds, is_done=files.result.exists())


def root_first(failures):
    """Sort failures, the root first: a rank that died without a word, then exceptions by their time.

    Those that only say that a peer has gone come last: a rank that cleans up in `finally:` leaves its peers
    before its own exception reaches the top.
    """
    return sorted(failures, key=lambda failure: (failure.is_consequence, failure.at))


def line_in(stack_file):
    """The Line at which a rank was, by its stack file: its main thread, or else another; None if there is none.

    `faulthandler` writes the file when the rank crashes, and when it is asked what it is doing.
    """
    try:
        text = stack_file.read_text(errors="replace")
    except OSError:
        return None
    _, *parts = text.split("(most recent call first):")
    stacks = [re.findall(r'File "(.*)", line (\d+) in (.*)', part) for part in parts]
    stacks = list(filter(None, stacks))  # since Python 3.14, a crash also shows a stack of C, which is empty here
    for stack in reversed(stacks):  # the main thread's is the last one
        for file, number, function in stack:
            if not _is_library(file):
                return Line(function, _unescaped(file), int(number))
    if stacks:
        _, _, function = stacks[-1][0]
        return Line(function)
    return None


def _unescaped(path):
    """A path as it is: `faulthandler` writes `j\\xfcrgen` for jürgen."""
    return re.sub(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
                  lambda match: chr(int(match[match.lastindex], 16)), path)


def _is_library(file):
    if file.startswith(f"{LESSONS}{os.sep}"):  # which pip may have put into site-packages
        return False
    pythons_own = os.path.dirname(os.__file__)
    launchers_own = os.path.dirname(__file__)
    return (file.startswith(("<frozen", "<string>", pythons_own, launchers_own))
            or "site-packages" in file or "dist-packages" in file)


# ---------------------------------------------------------------------------------------------------- in words


def message_of(failures, nprocs, results):
    """What the RankError of these failures, the first one first, says; `results`: of ranks that ended well."""
    first = failures[0]
    if first.is_hang:
        return _message_of_hangs(failures, nprocs)
    message = f"rank {first.rank} of {nprocs} failed first (exit code {first.exitcode}): {first.message}"
    if first.is_consequence and results:
        message += (f"\nRank {min(results)} had finished by then: does every rank call the same collectives, "
                    "equally often?")
    return message + _advice_on_gpus(first.message, nprocs)


def _message_of_hangs(failures, nprocs):
    first = failures[0]
    message = first.message
    for failure in failures[1:]:
        message += f"\nand {where_was(failure)}"
    all_hang = len(failures) == nprocs > 1
    at_one_line = len({failure.line for failure in failures}) == 1 and first.line and first.line.file
    if all_hang and at_one_line:
        message += ("\nAll ranks are at the same line: if it is a collective, "
                    "have their tensors the same shape and dtype?")
    return message


def unreadable(rank, error, logs):
    """The RankError for a rank whose result cannot be unpacked here, which raised `error`."""
    failure = Failure(rank, 0, f"{type(error).__name__}: {error}")
    return RankError(f"what rank {rank} returned cannot be read here: {failure.message}", [failure], logs)


def where_was(failure):
    """Where a rank was when it was asked, in words."""
    where = _place(failure.line) if failure.line else "busy in compiled code"
    if failure.is_done:
        return f"rank {failure.rank} has done its work but does not end (does a thread still run?); it is {where}"
    return f"rank {failure.rank} was {where}"


def _death(failure):
    try:
        name = signal.Signals(-failure.exitcode).name
    except ValueError:
        name = f"signal {-failure.exitcode}"
    words = [f"died: {name}"]
    if failure.line:
        words.append(_place(failure.line))
    if name in _HINTS:
        words.append(f"({_HINTS[name]})")
    return " ".join(words)


def _place(line):
    """A Line as `at <its code> (<where that is>)`."""
    if not line.file:
        return f"in {line.function}"
    linecache.checkcache(line.file)
    code = linecache.getline(line.file, line.number).partition("  #")[0].strip() or "?"  # without its comment
    is_cell = not os.path.isfile(line.file) or "ipykernel_" in line.file
    file = "" if is_cell else f"{os.path.basename(line.file)} "
    function = "" if line.function == "<module>" else f", in {line.function}"
    return f"at `{code}` ({file}line {line.number}{function})"


def _advice_on_gpus(message, nprocs):
    """What to do where NCCL or CUDA fails because there are fewer GPUs than ranks; else nothing."""
    if not re.search("NCCL|CUDA", message):
        return ""
    gpus = hardware.usable_gpus
    if not 0 < gpus < nprocs:
        return ""
    here = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return (f"\n(This machine has {here} for {nprocs} ranks, and NCCL wants one for each. "
            f"Launch nprocs={gpus}, or let the ranks share: init_process_group(\"gloo\"), and tensors on the CPU or "
            f'on torch.device("cuda", 0).)')


def _with_cells_named(text):
    """A traceback that says `Cell In[3]` where it names the file that IPython makes up for that cell."""
    from IPython import get_ipython

    compiler = getattr(get_ipython(), "compile", None)
    if not hasattr(compiler, "format_code_name"):  # not in IPython, or in an old one
        return text

    def named(match):
        label_and_name = compiler.format_code_name(match[1])
        return " ".join(label_and_name) if label_and_name else match[0]

    return re.sub(r'File "([^"\n]+)"', named, text)
