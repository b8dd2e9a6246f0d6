"""What happens in one rank: become a rank, run the learner's code, leave a result or the reason for none."""

import _thread
import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.machinery
import json
import linecache
import logging
import multiprocessing
import os
import pickle
import re
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from pathlib import Path

from helpers.launcher import asking, ending, meeting, sending
from helpers.launcher.files import SAY_WHAT_YOU_DO, Files, write
from helpers.reporting import REPORT_FILE, RUN_FOLDER

_stack_file = None  # faulthandler writes to its descriptor, so it has to stay open
_reserve = None  # the file set aside, open: a rank may fail because it can open no more files
_shows_tracebacks = False  # whether the default `sys.excepthook` prints


def main(folder, rank):
    """Run this rank's share of the work in `folder`; then end the process as Python ends a program."""
    files = Files(folder, rank)
    with open(Path(folder, "work"), "rb") as file:
        work = pickle.load(file)
    _leave_traces(files)
    _move_into_the_notebooks_surroundings(work, files, rank)
    asking.have_input_ask_the_notebook(files)
    sending.trust_no_older_bytecode()
    _differ_from_the_server()
    _meet_the_others(folder)
    sys.excepthook = _print_where_the_kernel_does_not_look
    own_pid = os.getpid()
    code = _do(work, files, own_pid)
    if code == 0 and os.getpid() == own_pid:
        all_files = [Files(folder, other) for other in range(int(work["environment"]["WORLD_SIZE"]))]

        def all_are_done():
            return all(other.result.exists() or other.failure.exists() for other in all_files)

        meeting.stay_for_late_ranks(all_are_done)
    ending.end(code)


def spawned(folder, rank):
    """`main` in a process that no fork server has started: it ends with the kernel, which holds its stdin."""
    lifeline = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def end_with_kernel():
        os.read(lifeline, 1)
        shutil.rmtree(folder, ignore_errors=True)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    _thread.start_new_thread(end_with_kernel, ())  # `threading` does not list it among the script's own
    main(folder, rank)


# --------------------------------------------------------------------------------------------- become a rank


def _leave_traces(files):
    """Have all that this process prints, C++ too, and where it is when it dies, written into the run's files."""
    global _stack_file, _reserve
    with open(files.log, "ab") as log:  # at once: a killed rank's last words stay
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):  # `python -u` has made them: they hold nothing back
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    _reserve = open(files.reserve, "r+b", buffering=0)
    _stack_file = open(files.stack, "wb")
    faulthandler.enable(_stack_file, all_threads=False)
    if SAY_WHAT_YOU_DO:
        faulthandler.register(SAY_WHAT_YOU_DO, _stack_file, all_threads=True)


def _move_into_the_notebooks_surroundings(work, files, rank):
    """Its folder, and its environment, with what torchrun adds; and what Python has read from these before."""
    os.chdir(work["folder"])
    os.environ.clear()
    os.environ.update(work["environment"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), ROLE_RANK=str(rank))
    os.environ.update({"TORCHELASTIC_ERROR_FILE": str(files.torchs_failure), REPORT_FILE: str(files.reports)})
    tempfile.tempdir = None  # TMPDIR and TZ may have changed since the server read them
    _keep_sockets_in(work["environment"][RUN_FOLDER])
    if hasattr(time, "tzset"):
        time.tzset()


def _keep_sockets_in(folder):
    """Have multiprocessing put its sockets into the run's folder: they go with it, even if this rank is killed."""
    if len(f"{folder}/listener-01234567") < 104:  # a longer path is none for a socket, on macOS (Linux: 108)
        multiprocessing.current_process()._config["tempdir"] = folder


def _differ_from_the_server():
    """Give this process what a fork has copied, and a new process would have of its own."""
    import numpy  # not before the environment is right: where ranks are spawned, this is the first import
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a kernel under nohup ignores it
    threading.main_thread()._set_native_id()  # up to Python 3.12, a fork keeps the server's
    # Take out torch's exit function: a script's first finalizer registers it again, in its own place.
    atexit.unregister(weakref.finalize._exitfunc)
    weakref.finalize._registered_with_atexit = False
    if sys.version_info < (3, 13):
        logging._startTime = time.time()
    else:
        logging._startTime = time.time_ns()
    # The generators were seeded when the server imported them: without new seeds, all ranks draw the same.
    torch.default_generator.seed()
    numpy.random.seed()
    # Too late for OMP_NUM_THREADS itself: the server has loaded libgomp with its own.
    torch.set_num_threads(_threads(os.environ.get("OMP_NUM_THREADS", "")))
    gc.freeze = gc.unfreeze = lambda: None  # the server's objects are; at the end, what is not frozen is the rank's
    if sys.platform == "linux":
        ending.run_only_own_exit_handlers_of_c()


def _threads(omp_num_threads):
    """The threads that OMP_NUM_THREADS asks for (a list's first number); else one per usable core."""
    first_number = re.match(r"\s*([1-9]\d*)\s*(,|$)", omp_num_threads)
    if first_number:
        return int(first_number[1])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _meet_the_others(folder):
    import torch.distributed

    if torch.distributed.is_available():
        meeting.meet_by_file(Path(folder, "meeting"))
        meeting.destroy_groups_safely()


# ----------------------------------------------------------------------------- do the work, and say how it went


def _do(work, files, own_pid):
    """Do the work, and leave its result or the reason for none; return the exit code that Python would.

    What the learner's code forks comes back from here, too, with another process id, and leaves neither.
    """
    global _shows_tracebacks
    try:
        result = _run(work)
        if os.getpid() == own_pid:
            write(files.result, _packed(work, result))
        return 0
    except SystemExit as leaving:
        code = ending.exit_code(leaving)
        if os.getpid() == own_pid:
            _leave_system_exit(work, files, leaving, code)
        return code
    except BaseException as error:
        if os.getpid() != own_pid:
            traceback.print_exc()
            return 1
        code = ending.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        error = error.with_traceback(_learners_part(error.__traceback__))
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        _leave_failure(files, text, error, code)
        _shows_tracebacks = not _stderr_goes_to(files.log)  # asked here: torch's hook puts a stderr of its own in place
        return ending.call_hook(error, code)


def _print_where_the_kernel_does_not_look(kind, error, trace):
    """The rank's `sys.excepthook`. The kernel shows the traceback, and should do so once."""
    if _shows_tracebacks:
        traceback.print_exception(kind, error, trace)


def _stderr_goes_to(log):
    """Whether stderr is still what the kernel reads: a script may have put a tee or a file in its place."""
    try:
        return sys.stderr is sys.__stderr__ and os.path.samestat(os.fstat(2), os.stat(log))
    except OSError:
        return False


def _run(work):
    """Run the learner's code, in a `__main__` of its own; return what a function returns."""
    linecache.cache.update(work["cells"])  # where tracebacks and torch.compile look for a cell's source
    del sys.modules["__main__"]  # the new one then comes last: what is after it is the learner's (`ending`)
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    if sys.version_info < (3, 14):  # which makes them when it is asked for them
        main.__annotations__ = {}
    if "call" in work:
        main.__file__ = str(Path(__file__).with_name("cells.py"))  # what processes that it spawns run as theirs
        return sending.unpacked_call(work["call"])()
    return _run_script(main, **work["script"])


def _run_script(main, name, how, args):
    """What `python -u NAME ARGS` does, or with -m."""
    if how == "module":
        sys.argv = ["-m", *args]
        sys.orig_argv = [sys.executable, "-u", "-m", name, *args]
        folder = os.getcwd()
    else:
        sys.argv = [name, *args]
        sys.orig_argv = [sys.executable, "-u", name, *args]
        is_source = how == "source"
        folder = os.path.dirname(os.path.realpath(name)) if is_source else name
    if sys.flags.safe_path:  # python -P, PYTHONSAFEPATH
        del sys.path[:1]
    else:
        sys.path[:1] = [folder]
    _prefer_modules_in(folder)
    if how == "module":
        runpy._run_module_as_main(name)
    elif how == "program":  # a folder or a zip file with a `__main__.py`
        runpy._run_module_as_main("__main__", alter_argv=False)
    else:
        _run_file(main, name)


def _run_file(main, name):
    main.__file__ = os.path.abspath(name)
    main.__cached__ = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    try:
        exec(compile(Path(name).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)
    finally:  # Python does so, too: an exit function finds no `__file__`
        del main.__file__, main.__cached__


def _prefer_modules_in(folder):
    """Forget imported modules that the script has of its own beside it, such as a `helpers.py`."""
    if not os.path.isdir(folder):
        return
    beside = {entry.partition(".")[0] for entry in os.listdir(folder)} - {"__main__"}
    for name in beside.intersection(sys.modules):
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        origin = spec.origin if spec else None
        if origin and origin != getattr(sys.modules[name], "__file__", None):
            for other in list(sys.modules):
                if other == name or other.startswith(f"{name}."):
                    del sys.modules[other]


def _packed(work, result):
    if "script" in work:
        return b""
    try:
        return sending.packed(result)
    except Exception as error:
        raise TypeError(f"what this rank returned, a {type(result).__name__}, cannot be sent to the notebook "
                        f"({error}); return numbers, text, tensors, or lists and dicts of them") from None


def _leave_system_exit(work, files, leaving, code):
    if code == 0:
        write(files.result, _packed(work, None))
        return
    if "script" in work:  # such as argparse's: the program has said what it had to say
        leaving.__suppress_context__ = True
        leaving = leaving.with_traceback(None)
    else:
        leaving = leaving.with_traceback(_learners_part(leaving.__traceback__))
    text = leaving.code if isinstance(leaving.code, str) else f"sys.exit({leaving.code})"
    _leave_failure(files, f"SystemExit: {text}", leaving, code)


def _leave_failure(files, text, error, code):
    """Write down why this rank failed; the launcher reads it when the rank has ended."""
    failure = {
        "at": time.monotonic_ns(),  # the same clock in every rank: who failed first?
        "code": code,
        "exception": _short(text, 2000),
        "traceback": _short("".join(traceback.format_exception(error)), 20_000),
        "packed": sending.packed_exception(error).hex(),
    }
    try:
        write(files.failure, json.dumps(failure).encode())
    except OSError:  # the disk is full, or no file can be opened: there is one that was set aside
        failure["traceback"] = _short(failure["traceback"], 2000)
        failure["packed"] = ""
        with contextlib.suppress(OSError):
            _reserve.seek(0)  # over its spaces; JSON does not mind those that stay behind it
            _reserve.write(json.dumps(failure).encode())
            files.reserve.replace(files.failure)


def _learners_part(trace):
    """The traceback without the frames above the learner's first line: those are ours."""
    own = (__file__, sending.__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


def _short(text, limit):
    more = len(text) - limit
    if more <= 0:
        return text
    return f"{text[:limit // 2]}… ({more:,} more characters) …{text[-limit // 2:]}"
