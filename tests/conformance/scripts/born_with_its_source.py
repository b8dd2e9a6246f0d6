"""Inspect and doctest find the script's source."""
import doctest
import inspect
import linecache
import typing


def double(x: "int") -> "int":
    """Twice as much.

    >>> double(2)
    4
    """
    return 2 * x


print(inspect.getsource(double).splitlines()[-1], inspect.getsourcelines(double)[1])
print(inspect.getmodule(double).__name__)
print(typing.get_type_hints(double))
print(linecache.getline(__file__, 1).strip(), inspect.getfile(double) == __file__)
print(doctest.testmod().failed)
