"""Every exercise: its answer keeps all rules, each mistake breaks one, and a check recognises each."""

import pytest

from helpers.exercises.mistakes import as_function
from tests.answers import side_by_side
from tests.exercises.test_all import EXERCISES, called


def mistakes_of(exercise):
    return [row for row in exercise.mistakes if row.sign is None]


def stops_of(exercise):
    return [row for row in exercise.mistakes if row.sign is not None]


def kind(stop):
    """Stops that are recognised in the same way: one of each kind is tried in every test run."""
    return "a function" if callable(stop.sign) else "waited in vain" in stop.sign


FIRST = {}
for exercise in EXERCISES:
    for row in stops_of(exercise):
        FIRST.setdefault(kind(row), row)

STOPS, MISTAKES = [], []
for exercise in EXERCISES:
    for number, row in enumerate(stops_of(exercise)):
        in_every_run = any(row is first for first in FIRST.values())
        marks = [] if in_every_run else [pytest.mark.long]
        STOPS.append(pytest.param(exercise, row, id=f"{called(exercise)}-stop-{number}", marks=marks))
    for number, row in enumerate(mistakes_of(exercise)):
        MISTAKES.append(pytest.param(exercise, row, id=f"{called(exercise)}-{number}", marks=pytest.mark.long))

# In every test run: two mistakes of each exercise, and none of a slow one, as in its check.
SOME = [pytest.param(exercise, mistakes_of(exercise)[:2], id=called(exercise))
        for exercise in EXERCISES if not exercise.slow]
ALL = [pytest.param(exercise, mistakes_of(exercise), id=f"{called(exercise)}-all", marks=pytest.mark.long)
       for exercise in EXERCISES]
SLOW = [pytest.param(exercise, id=called(exercise)) for exercise in EXERCISES if exercise.slow]


@pytest.mark.parametrize("exercise", SLOW)
def test_a_slow_answer_is_right(exercise):
    """It runs once, and is compared with itself; a long test says whether it leaves the same each time."""
    for world_size in exercise.world_sizes:
        for words, case, _, left in side_by_side(exercise, [], world_size):
            assert exercise.first_broken(left, left, case) is None, words


@pytest.mark.parametrize(("exercise", "mistakes"), SOME + ALL)
def test_the_answer_is_right_and_each_mistake_breaks_a_rule(exercise, mistakes):
    """All of them in a launch for each number of ranks; what was refused in one is left out of the next."""
    accepted = list(mistakes)
    for world_size in exercise.world_sizes:
        refused = []
        functions = [as_function(exercise.answer, row) for row in accepted]
        for words, case, (*mistaken, again), wanted in side_by_side(
                exercise, [*functions, exercise.answer], world_size):
            assert exercise.first_broken(again, wanted, case) is None, (
                f"the answer itself breaks a rule (does it leave the same each time?): {words}")
            for row, mine in zip(accepted, mistaken, strict=True):
                raised = any(isinstance(rank, str) for rank in mine)
                if not raised and exercise.first_broken(mine, wanted, case):
                    refused.append(row)
        accepted = [row for row in accepted if row not in refused]
    assert not accepted


@pytest.mark.parametrize(("exercise", "row"), MISTAKES + STOPS)
def test_a_check_recognises_the_row(exercise, row):
    feedback = exercise.check(as_function(exercise.answer, row))
    assert feedback.status == "not yet" and feedback.where_to_look == row.look, feedback
