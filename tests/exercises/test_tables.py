"""Every exercise that is a table: each mistake breaks a rule, each row is recognised, each class fits on a page."""

import inspect

import pytest

from helpers.exercises.catalogue import exercises_of, modules
from helpers.exercises.tables import Table

TABLES = [exercise for module in modules().values() for exercise in exercises_of(module) if isinstance(exercise, Table)]
STOPS = [pytest.param(exercise, row, id=f"{exercise.name}-{number}", marks=[pytest.mark.long] if number else [])
         for exercise in TABLES for number, row in enumerate(exercise.stops)]
MISTAKES = [pytest.param(exercise, row, id=f"{exercise.name}-{number}")
            for exercise in TABLES for number, row in enumerate(exercise.mistakes)]

every_table = pytest.mark.parametrize("exercise", TABLES, ids=lambda one: f"{one.lesson}.{one.name}")


@every_table
def test_each_mistake_breaks_a_rule(exercise):
    """All of them in a launch for each number of ranks."""
    rows, left = [*exercise.mistakes, (exercise.answer, "")], dict(enumerate(exercise.mistakes))
    for world_size in exercise.world_sizes:
        shown = exercise.shown_by(rows, world_size)
        assert None not in shown, f"a mistake does not return in {world_size} ranks: is it a row for `stops`?"
        for number, case in enumerate(exercise.cases.values()):
            *mistaken, wanted = [[by_case[number] for by_case in by_rank] for by_rank in shown]
            assert exercise.first_broken(wanted, wanted, case) is None, "the answer itself"
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


@every_table
def test_the_class_fits_on_a_page(exercise):
    lines = inspect.getsource(type(exercise)).splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 110
