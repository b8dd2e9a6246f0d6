"""Every exercise as a table: its answer keeps all rules, each mistake breaks one, each row is recognised."""

import pytest

from tests.answers import side_by_side
from tests.exercises.test_all import EXERCISES, called


def kind(row):
    """Rows of `stops` that are recognised in the same way: one of each kind is tried in every test run."""
    sign = row[-2]
    return "a function" if callable(sign) else "waited in vain" in sign


ROWS = [(exercise, row) for exercise in EXERCISES for row in exercise.stops]
FIRST = {kind(row): row for _, row in reversed(ROWS)}.values()
STOPS = [pytest.param(exercise, row, id=f"{called(exercise)}-stop-{exercise.stops.index(row)}",
                      marks=[] if row in FIRST else [pytest.mark.long]) for exercise, row in ROWS]
MISTAKES = [pytest.param(exercise, row, id=f"{called(exercise)}-{number}", marks=pytest.mark.long)
            for exercise in EXERCISES for number, row in enumerate(exercise.mistakes)]


# In every test run: two mistakes of each exercise, and none of a slow one, as in its check.
SOME = [pytest.param(one, one.mistakes[:2], id=called(one)) for one in EXERCISES if not one.slow]
ALL = [pytest.param(one, one.mistakes, id=f"{called(one)}-all", marks=pytest.mark.long) for one in EXERCISES]
SLOW = [pytest.param(one, id=called(one)) for one in EXERCISES if one.slow]


@pytest.mark.parametrize("exercise", SLOW)
def test_a_slow_answer_is_right(exercise):
    """It runs once, and is compared with itself; a long test says whether it leaves the same each time."""
    for world_size in exercise.world_sizes:
        for words, case, _, left in side_by_side(exercise, [], world_size):
            assert exercise.first_broken(left, left, case) is None, words


@pytest.mark.parametrize(("exercise", "mistakes"), SOME + ALL)
def test_the_answer_is_right_and_each_mistake_breaks_a_rule(exercise, mistakes):
    """All of them in a launch for each number of ranks; what was refused in one is left out of the next."""
    left, answer = list(mistakes), (exercise.answer, "")
    for world_size in exercise.world_sizes:
        refused = []
        for words, case, (*mistaken, again), wanted in side_by_side(exercise, [*left, answer], world_size):
            assert exercise.first_broken(again, wanted, case) is None, (
                f"the answer itself breaks a rule (does it leave the same each time?): {words}")
            for row, mine in zip(left, mistaken, strict=True):
                raised = any(isinstance(one, str) for one in mine)
                if not raised and exercise.first_broken(mine, wanted, case):
                    refused.append(row)
        left = [row for row in left if row not in refused]
    assert not left


@pytest.mark.parametrize(("exercise", "row"), MISTAKES + STOPS)
def test_a_check_recognises_the_row(exercise, row):
    feedback = exercise.check(exercise.written(row))
    assert feedback.status == "not yet" and feedback.where_to_look == row[-1], feedback
