"""Exercises as tables: a right answer, what is observed of it, what must hold, what people write instead.

    class Halve(Table, InGroup):        # or `Table, Alone` where the function only computes; or `Table` alone
        title, task, hints, explanation, why = …
        world_sizes, cases = (2, 3), {"6 numbers": 6}

        def answer(tensor): …           # a right answer: `.solution()` shows it, and it is the reference
        def observe(halve, case): …     # in every rank: call it; what it left, a dict of plain values

        rules = same("tensor", "…where to look…"), nothing("collectives called", "…where to look…")
        mistakes = ("/ 2", "/ n", "…where to look…"), (a_wrong_function, "…where to look…")
        stops = (("isend", "send", "waited in vain at `dist.send(", "…where to look…"),)

A check runs the answer and the learner's function in the same ranks, and tells the first rule that is broken.
Then it runs the mistakes. The one that leaves *the same observations*, in every number of ranks and every
case, says where to look; without such a mistake, the rule does. One generic test tries every mistake. A
mistake is a row of one of three forms. Each ends with where to look:

    (old text of the answer, new text, look), (((old, new), (old, new), …), look), (a function, look)

`mistakes` return. What waits in vain, or raises, is a row of `stops`, which no check runs. One more entry
before its last says how it is recognised: words of the feedback, or a function of what the ranks observed
(`Lost` of helpers.exercises.group).
"""

import difflib
import inspect
import linecache
import math
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from helpers.exercises.engine import Exercise, not_yet


class Rule(NamedTuple):
    """What must hold of the observations."""

    broken: Callable
    """(mine, wanted, case) -> None, or (observed, expected) in words. The first two are by rank."""
    look: str
    """Where to look when no known mistake shows the same; or a function of the case."""


def holds(broken, look):
    """`broken(mine, wanted, case)` returns None, or (observed, expected) in words. It sees all ranks."""
    return Rule(broken, look)


def each(broken, look):
    """`broken(mine, wanted, case)` is asked of one rank after the other."""

    def in_some_rank(mine, wanted, case):
        for rank, (one, other) in enumerate(zip(mine, wanted, strict=True)):
            told = broken(one, other, case)
            if told:
                return (f"in rank {rank}, {told[0]}" if len(mine) > 1 else told[0]), told[1]
        return None

    return Rule(in_some_rank, look)


def same(name, look, within=0.0):
    """The observation `name` is the answer's, floats within a relative `within`."""

    def broken(mine, wanted, case):
        difference = first_difference(mine[name], wanted[name], within)
        if difference is None:
            return None
        place, got, right = difference
        return f"`{name}`{place} is {got}", f"{right}, as in the solution"

    return each(broken, look)


def nothing(name, look, expected="none of it"):
    """The observation `name` is empty, zero or None."""
    return each(lambda mine, wanted, case: (f"{name}: {mine[name]}", expected) if mine[name] else None, look)


def between(name, bounds, look):
    """`bounds(wanted, case)` gives the least and the most that the observation `name` may be."""

    def broken(mine, wanted, case):
        least, most = bounds(wanted, case)
        if mine[name] < least:
            return f"{name}: {mine[name]:g}", f"at least {least:g}"
        if mine[name] > most:
            return f"{name}: {mine[name]:g}", f"at most {most:g}"
        return None

    return each(broken, look)


def first_difference(one, other, within):
    """(place, mine, right), as text, of the first difference of two plain values; None if there is none."""
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        pairs = [(f"[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and type(one) is type(other):
        if len(one) != len(other):
            return "", f"{len(one)} long", f"{len(other)} long"
        pairs = [(f"[{index}]", *pair) for index, pair in enumerate(zip(one, other, strict=True))]
    else:
        if isinstance(one, float) and isinstance(other, float):
            equal = math.isclose(one, other, rel_tol=within) or (math.isnan(one) and math.isnan(other))
        else:
            equal = one == other and type(one) is type(other)
        return None if equal else ("", f"{one!r}", f"{other!r}")
    for place, mine, right in pairs:
        difference = first_difference(mine, right, within)
        if difference:
            return place + difference[0], *difference[1:]
    return None


class Table(Exercise):
    """An exercise that is written as a table; the module's docstring shows one."""

    rules = mistakes = stops = ()
    slow = False
    """Running the mistakes would take a learner's time: the rules alone say where to look."""
    beside_the_answer = True
    """The answer runs beside the learner's function; if it need not, `wanted` is None for every rank."""

    @classmethod
    def run(cls, answer, case, slowly):
        wanted = super().run(cls.answer, case, slowly) if cls.beside_the_answer else None
        mine = super().run(answer, case, slowly)
        return mine if cls.ends_after(mine) else (mine, wanted)

    def check(self, answer):
        self._given = answer
        return super().check(answer)

    def judge(self, seen, case):
        mine, wanted = zip(*seen, strict=True)
        told = self.first_broken(mine, wanted, case)
        if told is None:
            return None
        observed, expected, look = told
        return not_yet(observed, expected, self._recognised() or look)

    def lost(self, seen, case):
        return self._stopped(super().lost(seen, case), seen)

    def _of_error(self, error, answer):
        return self._stopped(super()._of_error(error, answer), None)

    def _stopped(self, told, seen):
        """`told`, with the place to look of the first row of `stops` that is recognised."""
        for *_, sign, look in self.stops:
            recognised = sign in told.observed if isinstance(sign, str) else seen and sign(seen)
            if recognised:
                return replace(told, where_to_look=look)
        return told

    def _recognised(self):
        """Where to look, if a mistake leaves the same as the learner's function; else None."""
        if self.slow:
            return None
        candidates, learners_row, has_run = list(self.mistakes), (self._given,), False
        for world_size in self.world_sizes:
            if not candidates:
                break
            *theirs, mine = self.shown_by([*candidates, learners_row], world_size)
            if mine is not None:  # None: this launch failed, and tells nothing of any row
                has_run = True
                candidates = [row for row, left in zip(candidates, theirs, strict=True)
                              if same_observations(mine, left)]
        if not has_run or not candidates:
            return None
        closest = max(candidates, key=lambda row: _alike(self._given, self.written(row)))
        return closest[-1]  # a row ends with where to look

    def first_broken(self, mine, wanted, case):
        """(observed, expected, where to look) of the first rule that is broken; None if all hold."""
        for rule in self.rules:
            told = rule.broken(mine, wanted, case)
            if told:
                return *told, rule.look(case) if callable(rule.look) else rule.look
        return None

    def shown_by(self, rows, world_size):
        """For each row, what its function left, by rank and case; None where it cannot be run."""
        from helpers.launcher import RankError, launch  # here, so that importing an exercise stays cheap

        functions = [self.written(row) for row in rows]
        try:
            work = type(self), functions
            run = launch(_each_in_rank, world_size, work, timeout=3 * self.timeout, show=False)
        except RankError:  # a row that does not return belongs to `stops`: the generic test says which
            return [None] * len(functions)
        return [list(shown) for shown in zip(*run.results, strict=True)]

    def written(self, row):
        """A row as a function: the answer with some text replaced, or a function as it is."""
        if callable(row[0]):
            return row[0]
        changes = row[0] if isinstance(row[0], tuple) else [row[:2]]
        source = textwrap.dedent(inspect.getsource(self.answer))
        for old, new in changes:
            assert old in source, f"{old!r} is not in the answer of {self.name}"
            source = source.replace(old, new)
        name = f"<{self.name} with {changes}>"
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        modules = {key: value for key, value in self.answer.__globals__.items() if inspect.ismodule(value)}
        scope = {"__name__": "a_notebook", **modules}
        exec(compile(source, name, "exec"), scope)
        return scope["answer"]


def same_observations(one, other):
    """Whether two functions left the same, in every rank and case."""
    return first_difference(one, other, 1e-6) is None


def _alike(one, other):
    """From 0 to 1: how much two functions' sources have in common."""
    try:
        return difflib.SequenceMatcher(None, inspect.getsource(one), inspect.getsource(other)).ratio()
    except (OSError, TypeError):
        return 0.0


def _each_in_rank(exercise, functions):
    """By function, by case: what it left, or the words of the error that it raised."""
    learners = functions[-1]
    return [[_left_by(exercise, function, case, function is learners) for case in exercise.cases.values()]
            for function in functions]


def _left_by(exercise, function, case, is_learners):
    run_without_the_answer = super(Table, exercise).run  # of the exercise's other base; `Table.run` runs both
    try:
        left = run_without_the_answer(function, case, 1)
    except Exception as error:
        if is_learners and exercise.world_sizes != (1,):
            raise  # if only some ranks come here, the others would wait for them until the launch is ended
        return f"{type(error).__name__}: {error}"
    if exercise.ends_after(left):
        raise RuntimeError("waited in vain: a row for `stops`")
    return left
