"""The end of a rank, which is the end of a Python program, in a process that Python itself does not end.

Taking all of torch's modules apart, as Python does, costs 0.1 s a rank, and nobody sees it. What a learner does
see is done here in Python's order (Py_FinalizeEx): threads are waited for, exit functions run, the learner's own
modules go, so that `__del__` is called, and every file that the rank has opened is written out.
"""

import _io
import atexit
import contextlib
import ctypes
import functools
import gc
import itertools
import os
import signal
import sys
import threading
import traceback
import types

#: The exit code of a program that an interrupt has ended.
INTERRUPTED = -signal.SIGINT
#: Python's exit code where standard output could not be flushed (Py_FinalizeEx).
NOT_FLUSHED = 120


def exit_code(leaving):
    """The exit code of a SystemExit, as the system counts it: 0 to 255. Python prints what is no number."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        fits_in_a_c_long = -2**63 <= code < 2**63
        return code & 0xFF if fits_in_a_c_long else 255
    print(code, file=sys.stderr)
    return 1


def call_hook(error, code):
    """Call `sys.excepthook`, as Python does for an exception that nobody has caught.

    Returns the exit code: `code`, unless the hook calls `sys.exit`.
    """
    sys.last_exc = sys.last_value = error  # where exit functions look
    sys.last_type = type(error)
    sys.last_traceback = error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return exit_code(leaving)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)
    return code


def run_only_own_exit_handlers_of_c():
    """Have C's `exit` run the handlers that this rank registers from now on, and none of the server's libraries.

    What is registered last runs first (on_exit(3)).
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # runs last, and ends the process
    libc.on_exit(libc.fcloseall, None)  # before it: writes out the files of C code


def end(code):
    """End this process with exit code `code`."""
    try:
        threading._shutdown()  # waits for threads that are no daemons; an executor ends its own first
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    if not _flush_standard_streams() and code != INTERRUPTED:
        code = NOT_FLUSHED
    _drop_modules()
    # Until the process ends: what a daemon thread lets go of meanwhile is not deleted a second time. The server's own
    # objects are frozen, so the collector lists those of a forked rank alone.
    objects = gc.get_objects()
    _finish_what_is_held(objects)
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if sys.platform == "linux":
        ctypes.PyDLL(None).exit(code)  # it keeps the interpreter, so no other thread wakes up in what is left
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # what C code has left open
    os._exit(code)


def _flush_standard_streams():
    """Flush stdout and stderr; return whether both could be."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:
            flushed = False
            if stream is sys.stdout:
                print(f"Exception ignored in: {stream!r}", file=sys.stderr)
                traceback.print_exc()
    return flushed


def _drop_modules():
    """Let go of `__main__` and all that was imported after it; what only they hold is closed and deleted."""
    # Python collects twice. The first time puts what is still reachable in order, a file's text before its
    # buffer; the second closes in that order, and nothing that was written is lost.
    gc.collect()
    # From the last one backwards, until `__main__`, which `rank` has put behind the server's modules.
    later = itertools.takewhile(lambda name: name != "__main__", reversed(sys.modules))
    names = ["__main__", *reversed(list(later))]
    threading.excepthook = lambda error: None  # Python stops daemon threads here; ours stumble in silence
    for name in names:
        sys.modules.pop(name, None)
    gc.collect()


def _finish_what_is_held(objects):
    """Delete and write out what somebody still holds: a hook, a handler, a library."""
    _flush(_streams_among(objects))  # a text first, then what lies beneath it: a `__del__` may close that
    for thing in objects:
        with contextlib.suppress(Exception):  # a daemon thread may be just closing it
            delete = _finalizer(type(thing))
            if delete and not gc.is_finalized(thing):
                delete(thing)
    streams = _streams_among(gc.get_objects())  # a `__del__` may have opened some
    _flush([*streams, sys.stdout, sys.stderr])
    for stream in streams:
        if type(stream).__module__ != "_io":  # a file written in Python, such as gzip's, has an end to write
            with contextlib.suppress(Exception):
                stream.close()
    _flush(streams)  # what lies beneath has got that end


@functools.cache
def _finalizer(kind):
    """The `__del__` of a class if it is written in Python."""
    delete = getattr(kind, "__del__", None)
    return delete if isinstance(delete, types.FunctionType) else None


def _streams_among(objects):
    # Not `isinstance`: it would ask an object for its `__class__`, which some answer with a warning.
    return [thing for thing in objects if issubclass(type(thing), _io._IOBase)]


def _flush(streams):
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()
