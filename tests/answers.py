"""Answers to the exercises, right and wrong, as tests.

    test_my_share_edits = edits(
        ex.my_share,
        ("items[rank::world_size]", "items", "the items 1×"),              # the solution with this replaced by that,
        ("[rank::", "[rank - 1::", "ranks are counted from 0"))            # and what the feedback must then say

    @wrong(ex.my_share, "`a` went to no rank")                             # where no edit can say it
    def test_drops_the_remainder(items, rank, world_size): …

    @right(ex.my_share)                                                    # another style, as right as ours
    def test_blocks_of_neighbours(items, rank, world_size): …
"""

import inspect
import itertools
import linecache
import textwrap

import pytest

_numbers = itertools.count()


def edited(exercise, *changes):
    """The exercise's solution with each (old, new) of `changes` replaced, as a function of its own.

    Raises:
        AssertionError: an `old` is not in the solution.
    """
    source = textwrap.dedent(inspect.getsource(exercise.answer))
    for old, new in changes:
        assert old in source, f"{old!r} is not in the solution of {exercise.name}:\n{source}"
        source = source.replace(old, new)
    name = f"<edit {next(_numbers)} of {exercise.name}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    scope = {"__name__": "a_notebook", **{key: value for key, value in exercise.answer.__globals__.items()
                                          if inspect.ismodule(value)}}
    exec(compile(source, name, "exec"), scope)
    return scope["answer"]


def refused(exercise, answer, fragment):
    """Check a wrong answer; its feedback must hold `fragment`."""
    feedback = exercise.check(answer)
    assert feedback.status == "not yet", feedback
    assert fragment in repr(feedback), feedback
    assert feedback.observed and feedback.expected and not feedback


def edits(exercise, *rows):
    """A test of wrong answers: (old, new, fragment), or (((old, new), …), fragment) where one change is not enough."""

    @pytest.mark.parametrize("row", rows, ids=[f"{number}-{row[-1][:40]}" for number, row in enumerate(rows)])
    def test(row):
        *change, fragment = row
        refused(exercise, edited(exercise, *(change[0] if len(change) == 1 else [change])), fragment)

    return test


def wrong(exercise, fragment):
    """Make a test of a wrong answer."""

    def decorate(answer):
        def test():
            refused(exercise, answer, fragment)

        return test

    return decorate


def right(exercise):
    """Make a test of a right answer."""

    def decorate(answer):
        def test():
            feedback = exercise.check(answer)
            assert feedback.status == "correct", feedback

        return test

    return decorate
