"""How often a function was called, and with what."""

import contextlib
import functools
from unittest import mock


@contextlib.contextmanager
def counted_calls(owner, *names):
    """Within the block, keep each call of the functions `names` of a module, class or object.

    Yields:
        {name: [(args, kwargs), …]}, in the order of the calls. A method's `self` is the first of its args
        where `owner` is a class.
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
            patches.enter_context(mock.patch.object(owner, name, counting(name, getattr(owner, name))))
        yield calls
