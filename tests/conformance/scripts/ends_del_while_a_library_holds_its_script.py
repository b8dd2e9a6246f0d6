"""__del__ is called though a library, warnings, still holds a function of the script."""
import os
import warnings


def to_nowhere(message, *_, **__):
    pass


class Writer:
    def __del__(self):
        os.write(1, b"writer closed\n")


warnings.showwarning = to_nowhere
writer = Writer()
