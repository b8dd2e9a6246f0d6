"""Every exercise as a table: each mistake breaks a rule, each row is recognised, each class fits on a page."""

import inspect

import pytest

from tests.answers import side_by_side
from tests.exercises.test_all import EXERCISES, every_exercise

STOPS = [pytest.param(exercise, row, id=f"{exercise.name}-{number}", marks=[pytest.mark.long] if number else [])
         for exercise in EXERCISES for number, row in enumerate(exercise.stops)]
MISTAKES = [pytest.param(exercise, row, id=f"{exercise.name}-{number}")
            for exercise in EXERCISES for number, row in enumerate(exercise.mistakes)]


@every_exercise
def test_each_mistake_breaks_a_rule(exercise):
    """All of them in a launch for each number of ranks."""
    left = dict(enumerate(exercise.mistakes))
    for words, case, mistaken, wanted in side_by_side(exercise, exercise.mistakes):
        assert exercise.first_broken(wanted, wanted, case) is None, f"the answer itself: {words}"
        for index, mine in enumerate(mistaken):
            raised = any(isinstance(one, str) for one in mine)
            if not raised and exercise.first_broken(mine, wanted, case):
                left.pop(index, None)
    assert not left, list(left.values())


@pytest.mark.long
@pytest.mark.parametrize(("exercise", "row"), MISTAKES)
def test_a_check_recognises_the_mistake(exercise, row):
    feedback = exercise.check(exercise.written(row))
    assert feedback.status == "not yet" and feedback.where_to_look == row[-1], feedback


@pytest.mark.parametrize(("exercise", "row"), STOPS)
def test_a_check_recognises_what_does_not_return(exercise, row):
    feedback = exercise.check(exercise.written(row))
    assert feedback.status == "not yet" and feedback.where_to_look == row[-1], feedback


@every_exercise
def test_the_class_fits_on_a_page(exercise):
    lines = inspect.getsource(type(exercise)).splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 110
