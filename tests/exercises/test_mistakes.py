"""Mistakes as other text for named lines of an answer; what names no line, or changes none, is refused at import."""

import inspect

import pytest

from helpers.exercises.exercise import Exercise
from helpers.exercises.mistakes import as_function, mistake, stop


def answer(numbers):
    total = 0                       #: begin
    for number in numbers:          #: loop
        if number > 0:              #: positive
            total += number         #: add
    return total


@pytest.mark.parametrize(("lines", "total"), [
    ({"begin": "total = 10"}, 16),
    ({"add": "total += 1\ntotal += number"}, 9),  # two lines, indented as the one was
    ({"add": ""}, 0),
    ({"positive": "if number < 0:"}, -4),  # a header: the body stays
    ({"positive": "total += number"}, 2),  # with its body
    ({"begin": "total = 1", "loop": "for number in numbers[1:]:"}, 6),
])
def test_the_text_of_named_lines_is_replaced(lines, total):
    function = as_function(answer, mistake("look", **lines))
    assert function([1, 2, 3, -4]) == total
    assert "#:" not in inspect.getsource(function)


def line_of(word):
    """Where this file has a line with `word`, as an error says it."""
    source = open(__file__, encoding="utf-8").read().splitlines()
    (number,) = [number for number, line in enumerate(source, start=1) if f"look={word}" in line]
    return f"{__file__}, line {number}: "


@pytest.mark.parametrize(("row", "place", "words"), [
    (mistake("look=unknown", ad="total = number"), line_of("unknown"), "no line of the answer is named 'ad'"),
    (mistake("look=same", begin="total = 0"), line_of("same"), "'begin' would be what it is"),
    (stop("sign", "look=stop", loop="for number in numbers:"), line_of("stop"), "'loop' would be what it is"),
    (mistake("look=nothing"), line_of("nothing"), "other text for lines of the answer, or a function"),
    (mistake("look=header", add="if number:"), line_of("header"), "'add' has none"),
    (mistake("look=colon", loop="for number in numbers"), line_of("colon"), "expected ':'"),
    (mistake("look=both", positive="total += 1", add="total += 2"), line_of("both"), "and so is one in it"),
])
def test_a_mistake_that_is_none_is_refused_with_its_place(row, place, words):
    with pytest.raises(ValueError) as refused:
        type("Sum", (Exercise,), {"answer": answer, "mistakes": (row,)})
    assert str(refused.value).startswith(place) and words in str(refused.value)


def test_a_name_stands_where_a_statement_begins():
    def misplaced(numbers):
        return sum(
            numbers)  #: end

    with pytest.raises(ValueError, match="on the first line of a statement"):
        as_function(misplaced, mistake("look", end="numbers[1:])"))


def test_what_every_exercise_has_is_not_overwritten():
    with pytest.raises(ValueError, match="check is a name of every exercise"):
        type("Sum", (Exercise,), {"answer": answer, "check": answer})


def test_a_solution_shows_no_names():
    class Sum(Exercise):
        title = "A sum"

        def answer(numbers):
            return sum(numbers)     #: sum

    assert "    return sum(numbers)\n```" in repr(Sum().solution())
