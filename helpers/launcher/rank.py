"""What happens inside one rank: become a rank, run the learner's code, leave a result or the reason for none."""

import contextlib
import faulthandler
import inspect
import io
import json
import linecache
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
import types
from multiprocessing import parent_process
from pathlib import Path

from helpers.launcher import workarounds

#: The signal at which a rank writes down what it is doing (SIGUSR1 is left to the learner: Slurm sends it).
SAY_WHAT_YOU_DO = getattr(signal, "SIGUSR2", None)

_stack_file = None  # faulthandler writes to its descriptor, so it has to stay open


class Files:
    """The files of one rank in its run's folder. A result or failure that is there is whole: it was renamed."""

    def __init__(self, folder, rank):
        folder = Path(folder)
        self.log = folder / f"log-{rank}"  # stdout and stderr together, in the order in which they were written
        self.reports = folder / f"reports-{rank}"
        self.stack = folder / f"stack-{rank}"
        self.failure = folder / f"failure-{rank}"
        self.result = folder / f"result-{rank}"
        self.meeting = folder / "meeting"  # of all ranks: where they meet to form their groups


def main(folder, rank, environment, parent, goodbye):
    """Run this rank's share of the work that lies in `folder`; the target of the process that `launch` starts.

    It never raises: a failure is written to the rank's failure file and the process ends with exit code 1, or that
    of its `sys.exit`. `goodbye` is a connection into which a rank that has nothing left to do says so.
    """
    files, me = Files(folder, rank), os.getpid()
    try:
        _become_a_rank(files, folder, environment, parent)
        with open(Path(folder, "work"), "rb") as file:
            work = pickle.load(file)
        result = _run(work)
        _only_in(me)
        _end_in_good_order(files, result, folder, int(environment["WORLD_SIZE"]), goodbye)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        _only_in(me, code)
        if code:
            said = leaving.code if isinstance(leaving.code, str) else f"sys.exit({code})"
            _fail(files, f"SystemExit: {said}", leaving, code)
        _end_in_good_order(files, None, folder, int(environment["WORLD_SIZE"]), goodbye)
    except BaseException as error:
        if os.getpid() != me:
            traceback.print_exc()
        _only_in(me, 1)
        _fail(files, "".join(traceback.format_exception_only(type(error), error)).strip(), error)
    finally:
        _flush()


def _end_in_good_order(files, result, folder, world_size, goodbye):
    write(files.result, _packed(result))
    ends = [(other.result, other.failure) for other in (Files(folder, rank) for rank in range(world_size))]
    workarounds.stay_for_late_ranks(files.meeting, ends)
    workarounds.run_exit_functions()
    _flush()
    if "torch.cuda" not in sys.modules or not sys.modules["torch.cuda"].is_initialized():
        # The system takes 10 ms to free the memory of a process that has imported torch. Nobody has to wait for that,
        # unless it is a GPU's, which the next cell may want.
        goodbye.send_bytes(b"bye")
        os._exit(0)


def _only_in(rank_process, code=0):
    """End a process that the learner's code has forked from the rank: it leaves no result and no failure."""
    if os.getpid() != rank_process:
        _flush()
        os._exit(code)


def _become_a_rank(files, folder, environment, parent):
    if hasattr(os, "setsid"):
        os.setsid()  # a process group of its own, which can be ended together with whatever the rank starts
        Path(folder, f"group-{os.getpid()}").touch()  # the fork server ends these groups when the kernel dies
    if parent is not None:
        workarounds.die_with(parent)
    else:  # spawned: no server to do it
        threading.Thread(target=_end_with_kernel, args=(folder,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the kernel was started to ignore it (nohup)
    workarounds.forget_start_method()
    workarounds.forget_server_exit_functions()
    _write_to(files.log)
    os.environ.clear()
    os.environ.update(environment)
    global _stack_file
    _stack_file = open(files.stack, "wb")
    faulthandler.enable(_stack_file, all_threads=False)
    if SAY_WHAT_YOU_DO:
        faulthandler.register(SAY_WHAT_YOU_DO, _stack_file, all_threads=False)

    import torch

    # Too late for OMP_NUM_THREADS itself: the server has loaded libgomp with its own.
    torch.set_num_threads(_threads(environment.get("OMP_NUM_THREADS", "")))
    if torch.distributed.is_available():
        workarounds.rendezvous_by_file(files.meeting)
        workarounds.keep_destroyed_groups()


def _end_with_kernel(folder):
    """End this rank and all that it started when the kernel is gone, and leave no file."""
    parent_process().join()
    shutil.rmtree(folder, ignore_errors=True)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _write_to(log):
    """Send all that this process prints, from C++ too, to `log`, line by line: a killed rank leaves its last lines."""
    _flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(os.fdopen(number, "wb", buffering=0)))
        getattr(sys, name).reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")


def _run(work):
    linecache.cache.update(work["cells"])  # tracebacks, inspect and torch.compile find the source of notebook cells
    if "call" in work:
        import cloudpickle

        function, args = cloudpickle.loads(work["call"])
        # What the cell knew: an object of a class from a cell can then be pickled here, too (all_gather_object).
        if getattr(function, "__module__", None) == "__main__":
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            main.__dict__.update(getattr(inspect.unwrap(function), "__globals__", {}))
        return function(*args)
    # What `python script.py` does. (runpy.run_path would put the old __main__ back at the end, under the feet of exit
    # functions and threads that are still running.)
    path = work["script"]
    sys.argv = [path, *work["args"]]
    sys.path.insert(0, os.path.dirname(path))
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__file__ = path
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)


def _packed(result):
    import cloudpickle

    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(f"what this rank returned, a {type(result).__name__}, cannot be sent to the notebook "
                        f"({error}); return numbers, text, tensors, or lists and dicts of them") from None


def _fail(files, message, error, code=1):
    """Write down why this rank failed, and leave soon: an exit in good order could wait for the other ranks."""
    trace = _learners_part(error.__traceback__)
    told = {
        "at": time.monotonic_ns(),  # the same clock in every rank: who failed first?
        "code": code,
        "message": _short(message),
        "traceback": _short("".join(traceback.format_exception(type(error), error, trace)), 20_000),
    }
    with contextlib.suppress(OSError):  # a full disk: the exit code still tells that it failed
        write(files.failure, json.dumps(told).encode())
    _flush()  # the launcher may end it while it stays
    if not isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            workarounds.stay_for_connecting_ranks()
    os._exit(code)


def _learners_part(trace):
    """The traceback without the frames above the learner's first line: they are ours, and no business of theirs."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _short(text, limit=2000):
    if len(text) <= limit:
        return text
    return f"{text[:limit // 2]}… ({len(text) - limit:,} more characters) …{text[-limit // 2:]}"


def write(path, content):
    """Write a file of the run, whole or not at all."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # the disk is full: leave room for the failure that says so
        raise


def _flush():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _threads(omp_num_threads):
    """The threads that OMP_NUM_THREADS asks for (its first number: OpenMP allows a list); else one per usable core."""
    first = omp_num_threads.split(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
