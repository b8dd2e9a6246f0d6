"""A generator that is still open runs its finally. An ExitStack that nobody closed does nothing."""
# nprocs: 1
import contextlib


def numbers():
    try:
        yield 1
    finally:
        print("finally")


generator = numbers()
next(generator)
stack = contextlib.ExitStack()
stack.callback(print, "callback of a stack")
