"""How often a function was called, and with what."""

import contextlib
import functools
import inspect
from unittest import mock


@contextlib.contextmanager
def counted_calls(owner, *names):
    """Within the block, keep each call of the functions `names` of a module, class or object.

    Who has taken a function out of `owner` before, as `from torch import stack` does, calls it uncounted.

    Yields:
        {name: [(args, kwargs), …]}, in the order of the calls. A method's `self`, or `cls`, is the first of its
        args where `owner` is a class.
    """
    calls = {name: [] for name in names}

    def counting(name, function):
        @functools.wraps(function)
        def counted(*args, **kwargs):
            calls[name].append((args, kwargs))
            return function(*args, **kwargs)

        return counted

    with contextlib.ExitStack() as patches:
        for name in names:
            counted = counting(name, getattr(owner, name))
            if inspect.isclass(owner):
                method = inspect.getattr_static(owner, name)
                # What `getattr` returns of these is bound already: the class needs the same kind anew.
                if isinstance(method, (staticmethod, classmethod)):
                    counted = type(method)(counting(name, method.__func__))
            patches.enter_context(mock.patch.object(owner, name, counted))
        yield calls
