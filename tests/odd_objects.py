"""Odd objects, drawn by a seed, as somebody may hand them to a check by mistake. None is right."""

import functools
import os
import random
import signal
import sys
import threading
import time
from unittest import mock

import numpy
import torch


class Rude:
    """Raises `error` at whatever is asked of it, or answers yes to every question."""

    def __init__(self, error=None):
        self.__dict__["error"] = error

    def _asked(self, *_):
        if self.__dict__["error"] is None:
            return True
        raise self.__dict__["error"]("no")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = __getattr__ = _asked
    __len__ = __float__ = __int__ = __index__ = __iter__ = __getitem__ = _asked
    __repr__ = __str__ = __format__ = _asked
    __hash__ = object.__hash__


class Unreadable(Exception):
    """Can be pickled, but not be read back."""

    def __init__(self, one, two):
        super().__init__(one)


def slow_numbers():
    while True:
        time.sleep(0.01)
        yield 1


def circle():
    inside = []
    inside.append(inside)
    return inside


#: What a function may return: made in the rank, when it is called.
VALUES = {
    "None": lambda: None,
    "nan": lambda: float("nan"),
    "a huge number": lambda: 10**5000,
    "a lone surrogate": lambda: "\ud800",
    "much text": lambda: "x" * 10**6,
    "a lambda": lambda: lambda: 1,
    "a module": lambda: sys,
    "a lock": threading.Lock,
    "numbers without end": slow_numbers,
    "a set": lambda: {1, 2.5},
    "a list in itself": circle,
    "a range": lambda: range(10**12),
    "no tensor": lambda: torch.zeros(0),
    "a tensor of nan": lambda: torch.full((2, 3), float("nan")),
    "on meta": lambda: torch.zeros(2, 3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "a large tensor": lambda: torch.zeros(10**7),
    "with a gradient": lambda: torch.zeros(3, requires_grad=True) * 2,
    "objects in numpy": lambda: numpy.array([None, "x"], dtype=object),
    "an exception": lambda: ValueError("returned"),
    "equal to all": lambda: mock.ANY,
    "MagicMock": mock.MagicMock,
    "yes to all": Rude,
    "rude": lambda: Rude(ValueError),
    "rude beyond Exception": lambda: Rude(KeyboardInterrupt),
}


def raises(error, *_):
    raise error("one", "two") if error is Unreadable else error("odd")


#: What a function may do before it returns.
DEEDS = {
    "sleeps": lambda: time.sleep(1000),
    "leaves": sys.exit,
    "os._exit(0)": lambda: os._exit(0),
    "kills itself": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "closes descriptors": lambda: os.closerange(0, 3),
    "no environment": lambda: os.environ.clear(),
    "goes elsewhere": lambda: os.chdir("/"),
    "threads": lambda: threading.Thread(target=time.sleep, args=(99,)).start(),
    "another default": lambda: torch.set_default_dtype(torch.float16),
    "prints": lambda: print("odd\x00\x1b[2J" * 1000),
} | {f"raises {error.__name__}": functools.partial(raises, error)
     for error in (KeyboardInterrupt, MemoryError, StopIteration, Unreadable)}


def function(deed, value):
    def odd(*args, **kwargs):
        if deed is not None:
            DEEDS[deed]()
        return VALUES[value]()

    return odd


async def coroutine(*args):
    return 1


#: What is no plain function, and may look like one.
THINGS = {
    "None": None,
    "text": "my_function",
    "a class": dict,
    "a tensor": torch.zeros(2),
    "no arguments": lambda: 1,
    "by name only": lambda *, odd: 1,
    "len": len,
    "a coroutine": coroutine,
    "MagicMock": mock.MagicMock(),
    "partial": functools.partial(print, 1),
    "a lock": threading.Lock(),
    "yes to all": Rude(),
    "rude": Rude(ValueError),
}


def drawn(seed, count):
    """{words: object}: `count` of them, the same for the same seed."""
    dice, objects = random.Random(seed), {}
    while len(objects) < count:
        if dice.random() < 0.2:
            words = dice.choice(list(THINGS))
            objects[words] = THINGS[words]
        else:
            deed = dice.choice(list(DEEDS)) if dice.random() < 0.3 else None
            value = dice.choice(list(VALUES))
            objects[f"{deed or 'a function'}, returns {value}"] = function(deed, value)
    return objects
