"""Odd objects, drawn by a seed, as somebody may hand them to a check by mistake or out of curiosity. None is right."""

import functools
import os
import random
import signal
import sys
import threading
import time
import types
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

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _asked
    __len__ = __float__ = __int__ = __index__ = __iter__ = __getitem__ = __repr__ = __str__ = __format__ = _asked
    __hash__ = object.__hash__


class Attributes(Rude):
    """Rude about every attribute, too."""

    def __getattr__(self, name):
        self._asked()

    @property
    def __name__(self):
        return self._asked()


class RudeFunction(Attributes):
    def __call__(self, *args, **kwargs):
        return None


class Yes(float):
    """A number that is equal to all others."""

    __eq__ = __le__ = __ge__ = lambda *_: True
    __ne__ = __lt__ = __gt__ = lambda *_: False
    __hash__ = float.__hash__
    __sub__ = __rsub__ = __abs__ = __truediv__ = __rtruediv__ = __mul__ = __rmul__ = lambda self, *_: self


class Meant(BaseException):
    """No Exception, and its text cannot be had."""

    def __str__(self):
        raise ValueError("no text")


class Unreadable(Exception):
    """Can be pickled, but not be read back."""

    def __init__(self, one, two):
        super().__init__(one)


def slow_numbers():
    while True:
        time.sleep(0.01)
        yield 1


def deep(depth=3000):
    inside = []
    for _ in range(depth):
        inside = [inside]
    return inside


def circle():
    inside = []
    inside.append(inside)
    return inside


ERRORS = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, Meant, RecursionError, MemoryError, StopIteration]

#: What a function may return: made in the rank, when it is called.
VALUES = {
    "None": lambda: None, "nan": lambda: float("nan"), "inf": lambda: float("-inf"), "a huge number": lambda: 10**5000,
    "-1": lambda: -1, "1j": lambda: 1j, "text": lambda: "forty-two", "bytes": lambda: b"\xff\x00", "''": lambda: "",
    "a lone surrogate": lambda: "\ud800", "much text": lambda: "x" * 10**6, "NotImplemented": lambda: NotImplemented,
    "a lambda": lambda: lambda: 1, "a class": lambda: dict, "a module": lambda: sys, "an object": lambda: object(),
    "a lock": threading.Lock, "an open file": lambda: open(os.devnull), "an iterator": lambda: iter([1, 2]),
    "numbers without end": slow_numbers, "a set": lambda: {1, 2.5}, "a deep list": deep, "a list in itself": circle,
    "odd keys": lambda: {None: 1, (): 2, 3: "x"}, "a range": lambda: range(10**12), "slots": lambda: slice(None),
    "no tensor": lambda: torch.zeros(0), "a tensor of nan": lambda: torch.full((2, 3), float("nan")),
    "on meta": lambda: torch.zeros(2, 3, device="meta"), "sparse": lambda: torch.eye(3).to_sparse(),
    "complex": lambda: torch.zeros(2, dtype=torch.complex64), "bool": lambda: torch.tensor(True),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    "a large tensor": lambda: torch.zeros(10**7), "expanded": lambda: torch.zeros(1).expand(10**8),
    "with a gradient": lambda: torch.zeros(3, requires_grad=True) * 2, "7 dimensions": lambda: torch.zeros([1] * 7),
    "numpy": lambda: numpy.zeros((0, 3)), "objects in numpy": lambda: numpy.array([None, "x"], dtype=object),
    "numpy's nat": lambda: numpy.datetime64("NaT"), "a module of torch": lambda: torch.nn.Linear(1, 1),
    "an exception": lambda: ValueError("returned"), "a class of exceptions": lambda: KeyboardInterrupt,
    "yes to all": Rude, "equal to all": lambda: mock.ANY, "a number equal to all": lambda: Yes(1), "Mock": mock.Mock,
    "MagicMock": mock.MagicMock, "attributes": Attributes, "SimpleNamespace": types.SimpleNamespace,
} | {f"rude: {error.__name__}": functools.partial(Rude, error) for error in ERRORS}

#: What a value may lie in.
PLACES = {"": lambda value: value, "[…]": lambda value: [value()] if callable(value) else [value],
          "(…, …)": lambda value: (value, value), "{'a': …}": lambda value: {"a": value},
          "a generator of": lambda value: (one for one in [value] * 3), "100 ×": lambda value: [value] * 100}


def shuffled(inputs):
    """Change whatever can be changed in the arguments."""
    for one in inputs:
        for change in ("clear", "zero_", "reverse", "eval"):
            if hasattr(one, change):
                getattr(one, change)()
                break
        if hasattr(one, "__dict__"):
            one.odd = inputs


def recursion(*_):
    return recursion() + 1


def raising(error, *_):
    raise error("one", "two") if error is Unreadable else error("odd")


#: What a function may do before it returns; it is given its arguments.
DEEDS = {
    "": lambda inputs: None, "changes its input": shuffled, "recurses": recursion,
    "sleeps": lambda inputs: time.sleep(1000), "os._exit(0)": lambda inputs: os._exit(0),
    "leaves": lambda inputs: sys.exit(), "kills itself": lambda inputs: os.kill(os.getpid(), signal.SIGKILL),
    "closes stdout": lambda inputs: sys.stdout.close(), "no stdout": lambda inputs: setattr(sys, "stdout", None),
    "closes descriptors": lambda inputs: os.closerange(0, 3), "no environment": lambda inputs: os.environ.clear(),
    "goes elsewhere": lambda inputs: os.chdir("/"), "threads": lambda inputs: threading.Thread(
        target=time.sleep, args=(1000,)).start(), "forks": lambda inputs: os.fork(),
    "another default": lambda inputs: torch.set_default_dtype(torch.float16),
    "a seed": lambda inputs: torch.manual_seed(0), "no gradients": lambda inputs: torch.set_grad_enabled(False),
    "prints": lambda inputs: print("odd\x00\x1b[2J" * 1000), "warns": lambda inputs: __import__("warnings").warn("odd"),
    "ignores signals": lambda inputs: signal.signal(signal.SIGTERM, signal.SIG_IGN),
} | {f"raises {error.__name__}": functools.partial(raising, error) for error in [*ERRORS, Unreadable]}


def function(deed, value, place):
    def odd(*args, **kwargs):
        DEEDS[deed]((*args, *kwargs.values()))
        return PLACES[place](VALUES[value]())

    return odd


async def coroutine(*args):
    return 1


def generator(*args):
    yield 1


#: What is no plain function, and may look like one.
THINGS = {
    "None": None, "3": 3, "text": "my_function", "a tuple": (1, 2), "a class": dict, "a class of exceptions": Meant,
    "a module": os, "nan": float("nan"), "a tensor": torch.zeros(2), "an array": numpy.zeros(3), "bytes": b"x",
    "no arguments": lambda: 1, "too many": lambda a, b, c, d, e, f, g, h, i: 1, "by name only": lambda *, odd: 1,
    "len": len, "print": print, "a coroutine": coroutine, "a generator": generator, "Mock": mock.Mock(),
    "MagicMock": mock.MagicMock(), "partial": functools.partial(print, 1), "a method": [].append,
    "a module of torch": torch.nn.Linear(1, 1), "a property": property(len), "a static method": staticmethod(len),
    "cached": functools.lru_cache(generator), "numpy.vectorize": numpy.vectorize(len), "NotImplemented": NotImplemented,
    "yes to all": Rude(), "a lock": threading.Lock(), "its own thread": threading.current_thread(),
    "a rude function that says yes": RudeFunction(),
} | {f"rude: {error.__name__}": Attributes(error) for error in ERRORS} | {
    f"rude function: {error.__name__}": RudeFunction(error) for error in ERRORS}


def drawn(seed, count):
    """{words: object}: `count` of them, the same for the same seed."""
    dice, objects = random.Random(seed), {}
    while len(objects) < count:
        if dice.random() < 0.2:
            words = dice.choice(list(THINGS))
            objects[words] = THINGS[words]
        else:
            deed = dice.choice(list(DEEDS)) if dice.random() < 0.3 else ""
            how = deed, dice.choice(list(VALUES)), dice.choice(list(PLACES)) if dice.random() < 0.5 else ""
            objects[f"{how[0] or 'a function'}, returns {' '.join(how[:0:-1]).strip()}"] = function(*how)
    return objects
