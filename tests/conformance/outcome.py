"""What one run of a script leaves, as plain JSON: in the same form for torchrun, launch, and launch by spawn.

    failed       the exit codes of the ranks that failed by themselves, by rank; "crashed" where C code ended it.
                 A rank that the launcher has ended, because another one failed, is not among them.
    exceptions   the last line of the uncaught exception, by rank; of a chain, the last line of each
    lines        what each rank printed to stdout and stderr, sorted, because torchrun writes these to two
                 files. Tracebacks are reduced to the exception's line.
    files        what was left in the run's folder, with its contents
    processes    what still ran when the launcher had returned, by program
    memory       names left in /dev/shm, of those that hold the run's mark: tests that run beside leave others

What is empty is left out. Words that the run's folder or the version of Python decides are taken out of lines and
files (`IN_ALL_VERSIONS`), so a record that was made with one version holds with each other.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.conformance.script import lay_out, read

ROOT = Path(__file__).parents[2]
#: Not `python -m torch.distributed.run`, which would import what lies in the current folder.
TORCHRUN = Path(sys.executable).with_name("torchrun")
MARK = "COURSE_TEST_MARK"
#: One of gloo's threads may want the interpreter when that is already ending, which then aborts.
GLOO_ABORT = "terminate called without an active exception"
#: What the two engines may say differently: timed lines of C++ and of torch's loggers, and the resource
#: tracker, which speaks after its rank has ended: whether a launcher still hears it depends on timing.
#: And what is another thing in each version: which crash it is and in which words, by Python; what torch warns of.
NOISE = re.compile(r"(\[rank\d+\]:)?\[?[WIE]\d{4} \d\d:|.*resource_tracker|(Fatal Python error|Python runtime state): "
                   r"|torch/\S+\.py: \w+Warning: ")
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)
#: What a line is in one version of Python or on one machine, and what stands for it.
IN_ALL_VERSIONS = [(re.compile(pattern), words) for pattern, words in (
    (r"/\S*/(site-packages|python3\.\d+)/", ""),
    (r"^(\[rank\d+\]: )+", ""),  # torch's own hook puts it there
    (r"^Exception ignored .*", "Exception ignored"),  # "in: <function …>", "while flushing sys.stdout:"
    (r"^Exception in thread .*", "Exception in a thread"),
    (r"(?<=\.py):\d+(?=: \w+Warning: )", ""),
    (r"0x[0-9a-f]+", "0x…"),
)]
#: Under a line of code, the part that is meant. What is marked, and how, is another thing in each version.
MARKS = re.compile(r"\s*[~^]+[~^ ]*$")
WARNING = re.compile(r"\S+\.py: \w+Warning: ")
#: The traceback that follows such a line is that of an exception that did not end its rank.
NOT_UNCAUGHT = ("Exception ignored", "Exception in", "--- Logging error", "Process ", "Error in")
BETWEEN_TWO_TRACEBACKS = ("The above exception was the direct", "During handling of the above")
_numbers = itertools.count()


def of(name, engine):
    """The outcome of the script `name` by `engine`: "torchrun" or "launch". (`by_spawn` asks for several.)"""
    script = read(name)
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
        folder = Path(os.path.realpath(folder), "run")
        folder.mkdir()
        target = lay_out(script, folder)
        own = set(_files(folder))
        outcome = _of_a_run(script, target, folder, {"torchrun": _torchrun, "launch": _launch}[engine])
        left = {path: content for path, content in _files(folder).items() if path not in own}
        return {key: value for key, value in {**outcome, "files": left}.items() if value}


def by_spawn(names):
    """Outcomes by name, from launch where there is no fork server. It takes seconds for each."""
    environment = {**os.environ, "COURSE_START_METHOD": "spawn"}
    command = [sys.executable, "-m", "tests.conformance.outcome", *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _of_a_run(script, target, folder, engine):
    mark = f"conformance-{os.getpid()}-{next(_numbers)}"
    failed, logs = engine(script, target, folder, mark)
    processes = _at_last(lambda: _left(folder, mark), 0.7)
    memory = _at_last(lambda: [name.replace(mark, "") for name in os.listdir("/dev/shm") if mark in name], 2)
    outcome = {"processes": sorted(processes.values()), "memory": sorted(memory)}
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not isinstance(logs, list):
        logs = logs()
    told = [_told(log, folder) for log in logs]
    outcome["failed"] = {str(rank): "crashed" if code in CRASHES else code for rank, code in sorted(failed.items())}
    outcome["exceptions"] = {str(rank): exceptions for rank, (_, exceptions) in enumerate(told) if exceptions}
    outcome["lines"] = {str(rank): lines for rank, (lines, _) in enumerate(told) if lines}
    return outcome


# The engines. Each returns the exit codes of the ranks that failed by themselves, and all ranks' logs, or how
# to get these once the run's last process has ended.

def _torchrun(script, target, folder, mark):
    module = ["-m"] if script.started_as.startswith("-m ") else []
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HELPERS_", "COURSE_", "OMP_NUM_THREADS", "PYTHON"))}
    environment = {**kept, MARK: mark, "GLOO_SOCKET_IFNAME": "lo", "KINETO_LOG_LEVEL": "6"}
    environment["NAMES_BEFORE"] = " ".join([*environment, "NAMES_BEFORE"])
    for attempt in range(5):
        logs = folder.parent / f"logs-{mark}-{attempt}"
        before = _files(folder)
        command = [TORCHRUN, "--standalone", f"--nproc-per-node={script.nprocs}", "--redirects", "3",
                   "--log-dir", logs, *module, target, *script.args]
        said = folder.parent / f"said-{mark}-{attempt}"  # no pipe: a process that is left would hold it
        with open(said, "wb") as file:
            code = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=file, stderr=file, start_new_session=True,
                                  preexec_fn=_as_in_a_terminal).returncode
        paths = {int(path.name): path for path in logs.glob("*/attempt_0/*")}
        if not any(GLOO_ABORT in _of_both_streams(path) for path in paths.values()):
            break
        for path in set(_files(folder)) - set(before):
            (folder / path).unlink()
    summary = said.read_text(errors="replace")
    found = re.findall(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)", summary)
    codes = {int(rank): int(exitcode) for rank, exitcode in found}
    if code and not codes:
        raise RuntimeError(f"torchrun itself failed for {script.name}:\n{summary}")
    root = int(re.search(r"Root Cause.*\n\[\d+\]:\n.*\n.*\n +rank +: (\d+)", summary)[1]) if codes else None
    return _by_themselves(codes, root), lambda: [_of_both_streams(path) for _, path in sorted(paths.items())]


def _as_in_a_terminal():
    """A shell's `&` and nohup have a process ignore these, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _of_both_streams(folder):
    return "\n".join((folder / name).read_text(errors="replace") for name in ("stdout.log", "stderr.log"))


def _launch(script, target, folder, mark):
    from helpers import RankError, launch

    module = {"module": True} if script.started_as.startswith("-m ") else {}
    seconds = 100 if os.environ.get("COURSE_START_METHOD") == "spawn" else 20
    not_pythons = {name: None for name in os.environ if name.startswith("PYTHON")}
    arguments = {"nprocs": script.nprocs, "args": script.args, "timeout": seconds, **module}
    before = os.getcwd()
    os.chdir(folder)
    threads = os.environ.pop("OMP_NUM_THREADS", None)
    os.environ |= {MARK: mark, "KINETO_LOG_LEVEL": "6"}
    os.environ["NAMES_BEFORE"] = " ".join([*os.environ, "NAMES_BEFORE"])
    try:
        return {}, launch(target, show=False, env=not_pythons, **arguments).logs
    except RankError as error:
        logs, codes = list(error.logs), {failure.rank: failure.exitcode for failure in error.failures}
        for failure in error.failures:
            if not failure.message.startswith("SystemExit"):
                if not _told(logs[failure.rank], folder)[1]:  # else a hook has printed it
                    logs[failure.rank] += f"\n{failure.traceback}"  # where torchrun's user finds it
                if failure.traceback and failure.message.splitlines()[0] not in failure.traceback:
                    logs[failure.rank] += f"\nthe message says something else: {failure.message}"
        return _by_themselves(codes, error.rank), logs
    except (TypeError, ValueError, OSError, SyntaxError) as error:
        return {-1: "refused"}, [f"{type(error).__name__}: {error}"]
    finally:
        os.chdir(before)
        for name in (MARK, "NAMES_BEFORE"):
            del os.environ[name]
        if threads:
            os.environ["OMP_NUM_THREADS"] = threads


def _by_themselves(codes, root):
    by_the_launcher = (-signal.SIGTERM, -signal.SIGKILL)
    return {rank: code for rank, code in codes.items() if rank == root or code not in by_the_launcher}


# What is left

def _at_last(find, seconds):
    """What `find` finds, once that is nothing; after so many seconds, whatever it is."""
    end = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _left(folder, mark):
    """Processes of the run that are still there: those that bear its mark or work in its folder.

    A rank that was forked shows others the fork server's environment, and not its own. So its folder counts.
    """
    left = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            here = Path(os.readlink(entry / "cwd")).is_relative_to(folder)
            if here or mark.encode() in (entry / "environ").read_bytes():
                process = psutil.Process(int(entry.name))
                line = " ".join(process.cmdline())
                is_server = process.ppid() == os.getpid() and "fork_server.main" in line
                is_own = process.pid == os.getpid() or is_server or "resource_tracker" in line
                if not is_own and process.status() != psutil.STATUS_ZOMBIE:
                    left[process.pid] = process.name()
    return left


def _files(folder):
    """Contents by path. Bytes that are no text are told by their number."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            try:
                text = _common(content.decode(), folder)
            except UnicodeDecodeError:
                text = f"{len(content)} bytes"
            found[path.relative_to(folder).as_posix()] = text
    return found


def _common(text, folder):
    """The text in words that neither the folder of the run nor the version of Python decides."""
    lines = []
    for line in text.replace(f"{folder}/", "").splitlines(keepends=True):
        for pattern, words in IN_ALL_VERSIONS:
            line = pattern.sub(words, line)
        if not MARKS.match(line):
            lines.append(line)
    return "".join(lines)


def _told(log, folder):
    """The lines of a log, sorted, and the last lines of its uncaught exceptions."""
    lines, exceptions, before, inside, uncaught = [], [], "", False, False
    for line in _common(log, folder).splitlines():
        if re.match(r"(Original )?Traceback \(most recent call last\)", line):
            inside, uncaught = True, not before.startswith(NOT_UNCAUGHT)
        elif line.startswith((" ", "\t")) and (inside or WARNING.match(before)):
            pass  # lines of code
        elif inside and uncaught:
            inside = False
            exceptions.append(line)
        elif line.strip() and not line.startswith(BETWEEN_TWO_TRACEBACKS) and not NOISE.match(line):
            inside = False
            lines.append(line)
        before = line
    return sorted(lines), exceptions


if __name__ == "__main__":
    print(json.dumps({name: of(name, "launch") for name in sys.argv[1:]}))
