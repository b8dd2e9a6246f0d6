"""TRANSITION: exercises written as tables of quoted text, until all lessons are converted."""
import inspect
import textwrap

from helpers.exercises import mistakes as new
from helpers.exercises.exercise import Exercise
from helpers.exercises.in_rank import Lost
from helpers.exercises.rules import Rule, between, each, first_difference, holds, nothing, same  # noqa: F401


class Table(Exercise):
    stops = ()
    _new_rows = True

    def __init_subclass__(cls):
        rows = [cls._new(row) for row in cls.mistakes] + [cls._new(row, row[-2]) for row in cls.stops]
        cls.mistakes = tuple(rows)
        super().__init_subclass__()

    @classmethod
    def _new(cls, row, sign=None):
        answer = vars(cls)["answer"] if not isinstance(vars(cls)["answer"], staticmethod) else cls.answer
        if callable(row[0]):
            return new.Mistake(row[-1], row[0], {}, "", sign)
        changes = row[0] if isinstance(row[0], tuple) else [row[:2]]
        source = textwrap.dedent(inspect.getsource(answer))
        for old, text in changes:
            assert old in source, (old, cls)
            source = source.replace(old, text)
        return new.Mistake(row[-1], new.compiled(answer, source, f"<{cls.__name__} with {changes}>"), {}, "", sign)

    @staticmethod
    def ends_after(seen):
        return isinstance(seen, Lost)
