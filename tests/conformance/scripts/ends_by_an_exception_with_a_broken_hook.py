"""A sys.excepthook that fails itself is reported beside the exception."""
# differs: traceback
# nprocs: 1
import sys


def hook(kind, error, trace):
    raise TypeError("in the hook")


sys.excepthook = hook
raise ValueError("boom")
