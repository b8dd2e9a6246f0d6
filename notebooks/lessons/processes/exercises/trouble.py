"""A rule for exercises that observe their `trouble`: in words, what kept the function from its end; else ""."""

from helpers.exercises.rules import each


def without(sign, expected, look):
    """The observation `trouble` has no `sign` in its words."""

    def broken(mine, wanted, case):
        if sign in mine["trouble"]:
            return mine["trouble"], expected

    return each(broken, look)
