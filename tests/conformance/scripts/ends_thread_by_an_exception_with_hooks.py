"""Exceptions in threads and in __del__ go to the script's own hooks."""
import sys
import threading


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


def fail():
    raise ValueError("in a thread")


threading.excepthook = lambda about: print("my hook:", about.exc_value, about.thread.name)
sys.unraisablehook = lambda about: print("my other hook:", about.exc_value)
thread = threading.Thread(target=fail, name="mine")
thread.start()
thread.join()
Thing()
