"""RankError: which rank failed first, why, and what the others were doing."""

import contextlib
import itertools
import json
import linecache
import os
import re
import signal
from dataclasses import dataclass, field

from helpers.hardware import hardware
from helpers.launcher import sending

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
        self.failures, self.logs, self.results = list(failures), list(logs), results or {}
        first = self.failures[0]
        self.rank, self.exitcode = first.rank, first.exitcode
        self.__cause__ = RankTraceback(first.traceback.rstrip())  # what a terminal shows above the message
        with contextlib.suppress(Exception):  # its class is not known here, say
            error = sending.unpacked(first.exception)
            with contextlib.suppress(AttributeError):  # a frozen dataclass
                error.__cause__ = self.__cause__
            self.__cause__ = error

    def __reduce__(self):
        return type(self), (str(self), self.failures, self.logs, self.results)

    def _render_traceback_(self):
        """What IPython shows instead of the frames of `launch`: the rank's own traceback."""
        others = [f"  then rank {f.rank}: {f.message.splitlines()[0][:200]}"
                  for f in self.failures[1:] if f.exitcode is not None]
        trace = _with_cells_named(self.failures[0].traceback.rstrip())
        return [*trace.splitlines(), f"RankError: {self}", *others]


class RankTraceback(Exception):
    """Carries the text of a traceback from another process."""

    def __str__(self):
        return f"\n{self.args[0]}" if self.args[0] else "the rank left no traceback"


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        exitcode: Negative for a signal; None if the rank was still running when the time was up.
        message: `TypeName: text` of the exception, or a sentence.
        traceback: The rank's traceback from the learner's first line on; empty if it left none.
        at: When, in seconds of the machine's monotonic clock; 0 for a rank that could no longer say.
        exception: The exception itself, packed by `sending`.
    """

    rank: int
    exitcode: int | None
    message: str
    traceback: str = ""
    at: float = 0
    exception: bytes = field(default=b"", repr=False)

    @property
    def is_consequence(self):
        """Whether this rank only noticed that another one had gone."""
        return bool(_CONSEQUENCE.search(self.message))

    def __str__(self):
        return self.message


def failure_of(rank, files, exitcode, is_script):
    """The Failure of a rank, or None if it has not failed. `exitcode`: None while its process still runs."""
    if files.failure.exists():
        told = json.loads(files.failure.read_text())
        return Failure(rank, exitcode or told["code"], told["message"], told["traceback"], told["at"] / 1e9,
                       bytes.fromhex(told["exception"]))
    if exitcode is None or (exitcode == 0 and (is_script or files.result.exists())):
        return None
    if exitcode == 0:
        return Failure(rank, 0, "left before its work was done, with exit code 0 (os._exit?)")
    if exitcode > 0:
        return Failure(rank, exitcode, f"left without an exception, with exit code {exitcode} (os._exit?)")
    name = f"signal {-exitcode}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exitcode).name
    words = [f"died: {name}", doing(files.stack), f"({_HINTS[name]})" if name in _HINTS else ""]
    return Failure(rank, exitcode, " ".join(filter(None, words)))


def advice_on_gpus(message, nprocs):
    """What to do where NCCL or CUDA fails because there are fewer GPUs than ranks; else nothing."""
    gpus = len(hardware.gpus) if re.search("NCCL|CUDA", message) else 0
    if not 0 < gpus < nprocs:
        return ""
    return (f"\n(This machine has {gpus} GPU{'s' * (gpus > 1)} for {nprocs} ranks, and NCCL wants one for each. "
            f"Launch nprocs={gpus}, or let the ranks share: init_process_group(\"gloo\"), and tensors on the CPU or "
            f'on torch.device("cuda", 0).)')


def first_first(failures):
    """Sort failures, the root first: a rank that died without a word, then exceptions by their time.

    Those that only say that a peer has gone come last: a rank that cleans up in `finally:` leaves its peers
    before its own exception reaches the top.
    """
    return sorted(failures, key=lambda f: (f.is_consequence, f.at))


def doing(stack_file):
    """The last stack in a rank's stack file, as `at <line of code> (<where>)`; empty if there is none.

    `faulthandler` writes it when the rank crashes, and when it is asked what it is doing.
    """
    try:
        text = stack_file.read_text(errors="replace")
    except OSError:
        return ""
    threads = [re.findall(r'File "(.*)", line (\d+) in (.*)', part)
               for part in text.split("(most recent call first):")[1:]]
    for file, line, function in itertools.chain(*reversed(threads)):  # the main thread comes last
        if not _is_library(file):
            linecache.checkcache(file)
            code = linecache.getline(file, int(line)).partition("  #")[0].strip()
            inside = "" if function == "<module>" else f", in {function}"
            is_cell = not os.path.isfile(file) or "ipykernel_" in file
            place = "" if is_cell else f"{os.path.basename(file)} "
            return f"at `{code or '?'}` ({place}line {line}{inside})"
    return f"in {threads[-1][0][2]}" if threads and threads[-1] else ""


def _with_cells_named(text):
    """A traceback that says `Cell In[3]` where it names the file that IPython makes up for that cell."""
    from IPython import get_ipython

    name_of = getattr(getattr(get_ipython(), "compile", None), "format_code_name", lambda file: None)

    def named(match):
        name = name_of(match[1])
        return f"{name[0]} {name[1]}" if name else match[0]

    return re.sub(r'File "([^"\n]+)"', named, text)


def _is_library(file):
    return (file.startswith(("<frozen", "<string>")) or "site-packages" in file or "dist-packages" in file
            or file.startswith(os.path.dirname(os.__file__)) or file.startswith(os.path.dirname(__file__)))

