"""The interpreter is as it is at its start."""
# differs: interpreter
import decimal
import faulthandler
import gc
import locale
import sys
import threading
import tracemalloc

print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
print(gc.isenabled(), gc.callbacks, gc.get_debug(), "frozen:", gc.get_freeze_count() > 0)
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
      sys.unraisablehook is sys.__unraisablehook__, threading.excepthook is threading.__excepthook__,
      sys.breakpointhook is sys.__breakpointhook__)
print(faulthandler.is_enabled(), tracemalloc.is_tracing(), decimal.getcontext().prec)
print(locale.setlocale(locale.LC_NUMERIC), locale.getpreferredencoding(), sys.getfilesystemencoding())
print(sys.pycache_prefix, hasattr(sys, "ps1"), sys.implementation.name)
print(open("/proc/self/cmdline").read().split("\0")[1:-1] == sys.orig_argv[1:])
