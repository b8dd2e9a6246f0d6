"""Answers to the exercises, right and wrong, as tests.

    test_my_share_edits = edits(
        ex.my_share,
        ("items[rank::world_size]", "items", "the items 1×"),          # the solution, this replaced by that,
        ("[rank::", "[rank - 1::", "ranks are counted from 0"))        # and what the feedback must then say

    @wrong(ex.my_share, "`a` went to no rank")                         # where no edit can say it
    def test_drops_the_remainder(items, rank, world_size): …

    @right(ex.my_share)                                                # another style, as right as ours
    def test_blocks_of_neighbours(items, rank, world_size): …          # (all of an exercise are one test)

For a slow exercise, its table alone speaks in every test run; these tests are long.
"""

import pytest

from helpers.exercises import mistakes


def edited(exercise, *changes):
    """The exercise's solution with each (old, new) of `changes` replaced, as a function of its own.

    Raises:
        AssertionError: an `old` is not in the solution.
    """
    source = mistakes.source_for_learners(exercise.answer)
    for old, new in changes:
        assert old in source, f"{old!r} is not in the answer of {exercise.name}"
        source = source.replace(old, new)
    return mistakes.compiled(exercise.answer, source, f"<{exercise.name} with {changes}>")


def refused(exercise, answer, fragment):
    """Check a wrong answer; its feedback must hold `fragment`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercise, "slow", True)  # whose check runs no mistakes beside it
        feedback = exercise.check(answer)
    assert feedback.status == "not yet", feedback
    assert fragment in repr(feedback), feedback
    assert feedback.observed and feedback.expected and not feedback


def long_if_slow(exercise, test):
    return pytest.mark.long(test) if exercise.slow else test


def edits(exercise, *rows):
    """A test of wrong answers: (old, new, fragment), or (((old, new), …), fragment) for several changes."""

    @pytest.mark.parametrize("row", rows, ids=[f"{number}-{row[-1][:40]}" for number, row in enumerate(rows)])
    def test(row):
        *change, fragment = row
        refused(exercise, edited(exercise, *(change[0] if len(change) == 1 else [change])), fragment)

    return long_if_slow(exercise, test)


def wrong(exercise, fragment):
    """Make a test of a wrong answer."""

    def decorate(answer):
        def test():
            refused(exercise, answer, fragment)

        return long_if_slow(exercise, test)

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
            for world_size in exercise.world_sizes:
                for words, case, left, wanted in side_by_side(exercise, answers, world_size):
                    for answer, mine in zip(answers, left, strict=True):
                        place = f"{answer.__name__}, {words}"
                        assert not any(isinstance(rank, str) for rank in mine), f"{place}: {mine}"
                        broken = exercise.first_broken(mine, wanted, case)
                        assert broken is None, f"{place}: {broken}"

        return long_if_slow(exercise, test)

    return decorate


def side_by_side(exercise, functions, world_size):
    """Run functions and the answer in one launch; a check itself runs one alone.

    Yields for each case: where it is, in words, the case, what each function left, and what the answer did.
    """
    by_function = exercise.left_by([*functions, exercise.answer], world_size)
    assert None not in by_function, f"a mistake does not return in {world_size} ranks: is it a `stop`?"
    for number, (words, case) in enumerate(exercise.cases.items()):
        *left, wanted = [[by_case[number] for by_case in by_rank] for by_rank in by_function]
        yield f"{world_size} ranks, {words}", case, left, wanted
