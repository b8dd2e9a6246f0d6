"""Answers to the exercises, right and wrong, as tests.

    test_my_share_edits = edits(
        ex.my_share,
        ("items[rank::world_size]", "items", "the items 1×"),              # the solution with this replaced by that,
        ("[rank::", "[rank - 1::", "ranks are counted from 0"))            # and what the feedback must then say

    @wrong(ex.my_share, "`a` went to no rank")                             # where no edit can say it
    def test_drops_the_remainder(items, rank, world_size): …

    @right(ex.my_share)                                                    # another style, as right as ours
    def test_blocks_of_neighbours(items, rank, world_size): …              # (all of an exercise are one test)
"""

import inspect
import itertools
import linecache
import textwrap

import pytest

from helpers.exercises.tables import Table

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


_right = {}


def right(exercise):
    """Collect right answers in other styles. The first one becomes a test of all that the exercise has."""

    def decorate(answer):
        answers = _right.setdefault(exercise.name, [])
        answers.append(answer)
        if len(answers) > 1:
            return None

        def test():
            for answer in answers if not isinstance(exercise, Table) else ():
                assert exercise.check(answer), answer.__name__
            if isinstance(exercise, Table):
                all_right(exercise, answers)

        return test

    return decorate


def all_right(exercise, answers):
    """Run the answers side by side, and ask the rules; a check itself runs one alone."""
    rows = [*((answer, "") for answer in answers), (exercise.answer, "")]
    for world_size in exercise.world_sizes:
        shown = exercise.shown_by(rows, world_size)
        assert None not in shown, "one of them does not return"
        for number, (words, case) in enumerate(exercise.cases.items()):
            *given, wanted = [[by_case[number] for by_case in by_rank] for by_rank in shown]
            for answer, mine in zip(answers, given, strict=True):
                told = f"{answer.__name__}, {world_size} ranks, {words}"
                assert not any(isinstance(one, str) for one in mine), f"{told}: {mine}"
                broken = exercise.first_broken(mine, wanted, case)
                assert broken is None, f"{told}: {broken.broken(mine, wanted, case)}"
