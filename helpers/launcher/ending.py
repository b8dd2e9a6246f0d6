"""The end of a rank, which is the end of a Python program, in a process that Python itself does not end.

Taking all of torch's modules apart, as Python does, costs 0.2 s a rank, and nobody sees it. What a learner
does see is done here in Python's order (Py_FinalizeEx): threads are waited for, exit functions run, and the
learner's own modules go, so that files close and `__del__` is called.
"""

import atexit
import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import traceback
import types
import weakref

#: The exit code of a program that an interrupt has ended.
INTERRUPTED = -signal.SIGINT


def exit_code(leaving):
    """The exit code of a SystemExit, as the system counts it: 0 to 255. Python prints what is no number."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -2**63 <= code < 2**63 else 255
    print(code, file=sys.stderr)
    return 1


def call_hook(error):
    """Call `sys.excepthook`, as Python does for an exception that nobody has caught."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)


def end(code):
    """End this process with exit code `code`."""
    try:
        threading._shutdown()  # waits for threads that are no daemons; an executor ends its own first
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    _drop_modules()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # what C code has left open
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _drop_modules():
    """Let go of `__main__` and all that was imported after it; what only they hold is closed and deleted."""
    # Python collects twice. The first time puts what is still reachable in order, a file's text before its
    # buffer; the second closes in that order, and nothing that was written is lost.
    gc.collect()
    later = itertools.takewhile(lambda name: name != "__main__", reversed(sys.modules))
    names = ["__main__", *reversed(list(later))]
    threading.excepthook = lambda error: None  # Python stops daemon threads here; ours stumble in silence
    modules = [name for name in names if isinstance(sys.modules[name], types.ModuleType)]
    left = [weakref.ref(sys.modules.pop(name)) for name in modules]
    gc.collect()
    for module in reversed(left):  # those that somebody else still holds
        if module() is not None:
            _clear(vars(module()))


def _clear(names):
    """Drop what a module holds, private names first, as Python does."""
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    others = [name for name in names if name != "__builtins__"]
    for name in private + others:
        names[name] = None
