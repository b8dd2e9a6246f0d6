"""A file that a hook holds is written out: of signals, exceptions, forks, copies, the garbage collector."""
import copyreg
import gc
import logging
import os
import signal
import sys


def holding(name):
    file = open(f"{name}-{os.environ['RANK']}", "w")
    file.write("all")
    return lambda *_, **__: file


signal.signal(signal.SIGTERM, holding("signal"))
sys.excepthook = holding("excepthook")
sys.displayhook = holding("displayhook")
sys.unraisablehook = holding("unraisablehook")
os.register_at_fork(before=holding("register_at_fork"))
copyreg.pickle(complex, holding("copyreg"))
gc.callbacks.append(holding("callbacks"))
logging.setLogRecordFactory(holding("record_factory"))
