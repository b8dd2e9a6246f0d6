"""Exit functions run last first. One that raises keeps no other from running, and the rank succeeds."""
import atexit
import sys


def fail():
    raise ValueError("in an exit function")


@atexit.register
def register_another():
    atexit.register(print, "registered by an exit function")
    print("main is", sys.modules["__main__"].__name__)


atexit.register(print, "after the failure")
atexit.register(fail)
gone = atexit.register(lambda: print("unregistered"))
atexit.unregister(gone)
