"""What a script has asked for runs at its end, in this order: exit functions, finalizers, __del__."""
# nprocs: 1
import atexit
import os
import weakref


class Thing:
    def __del__(self):
        say("__del__")


def say(what):
    os.write(order, f"{what}\n".encode())


order = os.open("order", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
thing, other = Thing(), Thing()
atexit.register(say, "registered first")
weakref.finalize(thing, say, "finalizer of a thing")
atexit.register(say, "registered second")
other.myself = other
