"""Rules: what must hold of what ranks observed. A check tells the first one that is broken."""

import math
from collections.abc import Callable
from typing import NamedTuple


class Rule(NamedTuple):
    """What must hold of the observations."""

    broken: Callable
    """(mine, wanted, case) -> None, or (observed, expected) in words. The first two are by rank."""
    look: str
    """Where to look when no known mistake shows the same; or a function of the case."""


def holds(broken, look):
    """`broken(mine, wanted, case)` returns None, or (observed, expected) in words. It sees all ranks."""
    return Rule(broken, look)


def each(broken, look):
    """`broken(mine, wanted, case)` is asked of one rank after the other."""

    def in_some_rank(mine, wanted, case):
        for rank, (observations, expectations) in enumerate(zip(mine, wanted, strict=True)):
            words = broken(observations, expectations, case)
            if words and len(mine) > 1:
                observed, expected = words
                return f"in rank {rank}, {observed}", expected
            if words:
                return words
        return None

    return Rule(in_some_rank, look)


def same(name, look, within=0.0):
    """The observation `name` is the answer's, floats within a relative `within`."""

    def broken(mine, wanted, case):
        difference = first_difference(mine[name], wanted[name], within)
        if difference is None:
            return None
        place, value, right = difference
        return f"`{name}`{place} is {value}", f"{right}, as in the solution"

    return each(broken, look)


def nothing(name, look, expected="none of it"):
    """The observation `name` is empty, zero or None."""

    def broken(mine, wanted, case):
        if mine[name]:
            return f"{name}: {mine[name]}", expected

    return each(broken, look)


def between(name, bounds, look):
    """`bounds(wanted, case)` gives the least and the most that the observation `name` may be."""

    def broken(mine, wanted, case):
        least, most = bounds(wanted, case)
        if mine[name] < least:
            return f"{name}: {_number(mine[name])}", f"at least {_number(least)}"
        if mine[name] > most:
            return f"{name}: {_number(mine[name])}", f"at most {_number(most)}"

    return each(broken, look)


def _number(value):
    """A whole number as it is, another one short."""
    return f"{value}" if isinstance(value, int) else f"{value:g}"


def first_difference(mine, right, within):
    """(place, mine, right), as text, of the first difference of two plain values; None if there is none."""
    if isinstance(mine, dict) and isinstance(right, dict) and list(mine) == list(right):
        pairs = [(f"[{key!r}]", mine[key], right[key]) for key in mine]
    elif isinstance(mine, list | tuple) and type(mine) is type(right):
        if len(mine) != len(right):
            return "", f"{len(mine)} long", f"{len(right)} long"
        pairs = [(f"[{index}]", *pair) for index, pair in enumerate(zip(mine, right, strict=True))]
    elif _equal(mine, right, within):
        return None
    else:
        return "", f"{mine!r}", f"{right!r}"
    for place, element, right_element in pairs:
        difference = first_difference(element, right_element, within)
        if difference:
            inner_place, value, right_value = difference
            return place + inner_place, value, right_value
    return None


def _equal(mine, right, within):
    if isinstance(mine, float) and isinstance(right, float):
        return math.isclose(mine, right, rel_tol=within) or (math.isnan(mine) and math.isnan(right))
    return mine == right and type(mine) is type(right)
