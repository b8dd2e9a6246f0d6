"""What every exercise is: a task, a right answer, what is observed of one, what must hold, what people write instead.

    class Halve(InGroup):               # or `Alone`, where the function only computes; or `Exercise`
        title, task, hints, explanation, why = …
        world_sizes, cases = (2, 3), {"6 numbers": 6}

        def answer(tensor): …           # a right answer: `.solution()` shows it, and it runs beside the learner's
            tensor /= 2                 #: half

        def observe(halve, case): …     # in every rank: call it; what it left, as a dict of plain values

        rules = (same("tensor", "…where to look…"), nothing("collectives called", "…where to look…"))
        mistakes = (mistake("…where to look…", half="tensor = tensor / 2"), …)

    halve = Halve()                     # its own file, and its line in the lesson's exercises/__init__.py

The way of a check:

    in the kernel                                     in each rank

    check
      _refused: is it a function at all?
      _tried_in: launch, for each number of ranks ──→ in_rank.beside_the_answer, in each case:
                                                        run ─→ observe(our answer)       = wanted
                                                        run ─→ observe(the learner's)    = mine
      judge: the first of the `rules` broken   ←────  [(mine, wanted), by case]
      _recognised: launch, if one is           ─────→ in_rank.one_after_the_other: each mistake, and
                                                        the learner's function again
      which mistake leaves the same?           ←────  [[what it left, by case], by function]
      journal.record
    Feedback: observed, expected, where to look

Where to look is told by the mistake that leaves the same in every number of ranks and every case, floats within 1e-6
(of several, by the one that is written most alike); else, and where an exercise is `slow`, by the rule. Ranks that
fail, or wait in vain (`Lost`), are put into words by `_of_failure` and `_of_the_lost`: then a `stop` may know why.

`answer`, `observe` and other functions of the class take no `self`, and do not see each other's names. Of its file,
`answer` uses imported modules alone. An exercise has a name that no exercise of another lesson has.
"""

import difflib
import inspect
import os
import re
import sys
from dataclasses import replace

from helpers.exercises import in_rank, journal
from helpers.exercises.feedback import CORRECT, NOT_ATTEMPTED, NOT_YET, Feedback, cause, kind_of, not_yet
from helpers.exercises.in_rank import Lost
from helpers.exercises.mistakes import as_function, refuse_unsound, source_for_learners
from helpers.exercises.rules import first_difference

#: Seconds in which the other ranks may fail as well, once one has: the feedback then names the lowest.
GRACE = 2
#: By how much all limits grow in the second try, on a machine on which a rank had no core to run on.
SLOWLY = 8

_TOO_BUSY = not_yet("this machine is too busy to tell whether your function waits for ever",
                    "an answer in time", "nothing in your code: run this cell again when less else is running")
_NO_ATTEMPT = Feedback(NOT_ATTEMPTED, where_to_look="put your own code where `raise NotImplementedError` or `...` "
                                                    "stands, run that cell, then this one; `.hint()` helps")

#: What an exercise cannot have of its own; it may have its own `run`, `judge` and `known_failure`.
_TAKEN = {"name", "lesson", "key", "check", "hint", "solution", "first_broken", "left_by"}

_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?', re.MULTILINE)
#: The traceback in the message of an error that a loader's worker, or a replica's thread, has passed on.
_RELAYED = re.compile(r"\.\nOriginal Traceback(?s:.*)\n .*\n")
#: What torch's C++ functions say after "incompatible function arguments": all types that they take, and all values that
#: they were given, thousands of characters.
_SIGNATURES = re.compile(r" The following argument types are supported:(?s:.*)")


class Note(str):
    """Markdown that a notebook renders and a terminal shows as it is."""

    __repr__ = _repr_markdown_ = str.__str__


class Exercise:
    """One exercise. Alone in a cell it shows its task."""

    title = task = explanation = why = ""
    hints = ()
    world_sizes = (1,)
    """The learner's code is run in a launch of each of these numbers of ranks."""
    cases = {"": None}
    """{the case in words, with which its feedback begins: what `observe` and the rules are given}."""
    rules = ()
    """What must hold of the observations, the first things first (rules.py)."""
    mistakes = ()
    """What people write instead (mistakes.py)."""
    timeout = 20
    """Seconds for one launch: as few as the solution allows, because a learner waits that long for a hang."""
    slow = False
    """Running the mistakes would take a learner's time: the rules alone say where to look."""
    runs_our_answer = True
    """Our answer runs beside the learner's function; if it need not, `wanted` is None for every rank."""
    waiting = ""
    """Where to look if a rank waited in vain: only where ranks talk (`group`)."""

    def __init_subclass__(cls):
        """An exercise is made: `answer` and `observe` take no `self`, and its mistakes are looked at.

        Raises:
            ValueError: a mistake is none, or the exercise has something of its own by a name that is taken here.
        """
        for name in ("answer", "observe"):
            if name in vars(cls):
                setattr(cls, name, staticmethod(vars(cls)[name]))
        taken = vars(cls).keys() & _TAKEN
        if taken:
            raise ValueError(f"{cls.__module__}: {', '.join(sorted(taken))} is a name of every exercise: take another")
        if cls.mistakes:
            refuse_unsound(cls.answer, cls.mistakes)

    def __init__(self):
        self.name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        self.lesson = type(self).__module__.split(".")[1]  # of lessons.<lesson>.exercises.<name>
        self.key = f"{self.lesson}.{self.name}"  # in the learner's progress
        self._hints_given = 0

    @classmethod
    def run(cls, answer, case, slowly):
        """What a rank does for one case; limits of its own are multiplied by `slowly`."""
        return cls.observe(answer, case)

    # ------------------------------------------------------------------------------------ what learners call

    def check(self, answer):
        """Run the learner's function in real ranks, keep the progress, and return the `Feedback`.

        Raises:
            KeyboardInterrupt: the cell was interrupted.
            RuntimeError, OSError: no rank can be started here at all; the learner's code is never the reason.
        """
        feedback = self._refused(answer)
        if feedback is None:
            feedback = self._tried(answer)
        feedback = replace(feedback, title=self.title)
        journal.record(self.key, feedback.status, cause(feedback))
        return feedback

    def hint(self):
        """The next hint; after the last one, a word that there are no more."""
        self._hints_given += 1
        if self._hints_given > len(self.hints):
            return Note("There are no more hints. `.solution()` shows one way to do it.")
        journal.helped(self.key, hints=self._hints_given)
        return Note(f"**Hint {self._hints_given} of {len(self.hints)}:** {self.hints[self._hints_given - 1]}")

    def solution(self):
        """One right answer, and why it is one."""
        journal.helped(self.key, solution=True)
        source = source_for_learners(self.answer).rstrip().replace("def answer(", f"def {self.name}(", 1)
        return Note(f"```python\n{source}\n```\n\n{self.explanation}")

    def __repr__(self):
        stub = f"def {self.name}{inspect.signature(self.answer)}:\n    raise NotImplementedError"
        return f"**{self.title}**\n\n{self.task}\n\n```python\n{stub}\n```"

    def _repr_markdown_(self):
        journal.begin(self.key)
        return repr(self)

    # ------------------------------------------------------------------------------------------------ a check

    def _refused(self, answer):
        """Feedback on something that cannot be run in a rank; None if it can be tried."""
        from helpers.launcher import arguments, sending  # here, so that importing an exercise stays cheap

        if answer is ...:
            return _NO_ATTEMPT
        if isinstance(answer, type) or not callable(answer):
            given = "a class" if isinstance(answer, type) else kind_of(answer)
            return not_yet(f"check() was given {given}", "the function itself",
                           f"write `check({self.name})`: the function's name, without parentheses after it")
        if error := _syntax_error_in_cell(getattr(answer, "__name__", "")):
            return not_yet(f"the cell that last defined `{answer.__name__}` did not run: "
                           f"SyntaxError: {error.msg}, at `{(error.text or '').strip()}`",
                           "a cell that runs; until then an older function is there",
                           f"line {error.lineno} of that cell")
        misfit = _misfit(answer, self.answer)
        if misfit is not None:
            return misfit
        try:
            sending.packed(answer)
        except Exception as error:
            culprit = arguments.unsendable(answer, ()) or "your function"
            return not_yet(arguments.cannot_be_sent(culprit, error),
                           "a function that can be sent to another process", "what it uses from outside itself")
        return None

    def _tried(self, answer):
        """Feedback on the function, after a launch for each number of ranks."""
        from helpers.launcher import client  # here, because it starts the fork server

        client.wait_until_ready()  # the time limit is the learner's, not the first import of torch's
        for world_size in self.world_sizes:
            feedback = self._tried_in(world_size, answer)
            if feedback is not None:
                return feedback
        return Feedback(CORRECT, why_it_matters=self.why)

    def _tried_in(self, world_size, answer, slowly=1):
        """Feedback on one launch, its limits multiplied by `slowly`; None if nothing was wrong."""
        from helpers.launcher import RankError, launch

        try:
            run = launch(in_rank.beside_the_answer, world_size, (type(self), answer, slowly), show=False, grace=GRACE,
                         timeout=slowly * self.timeout)
        except RankError as error:
            if error.failures[0].is_hang and slowly == 1 and _busy():
                return self._tried_in(world_size, answer, SLOWLY)
            return self._of_failure(error, answer)
        # Not strict: after a case in which ranks were lost, the later cases have not run.
        by_case = zip(*run.results, strict=True)
        for (words, case), pairs in zip(self.cases.items(), by_case, strict=False):
            mine, wanted = zip(*pairs, strict=True)
            if not isinstance(mine[0], Lost):
                feedback = self.judge(mine, wanted, case, answer)
            elif any(rank.starved > 0.1 for rank in mine):
                if slowly == 1:
                    return self._tried_in(world_size, answer, SLOWLY)
                feedback = _TOO_BUSY
            else:
                feedback = self._of_the_lost(mine)
            if feedback is not None:
                return self._placed(feedback, world_size, words, run.logs)
        return None

    def judge(self, mine, wanted, case, answer):
        """Feedback on what the ranks observed in a case; None if all rules hold."""
        try:
            broken = self.first_broken(mine, wanted, case)
        except Exception as error:
            return not_yet(f"the check cannot read what came back ({type(error).__name__}: {error})",
                           "what the task describes", "what your function returns, and its type")
        if broken is None:
            return None
        observed, expected, look = broken
        return not_yet(observed, expected, self._recognised(answer) or look)

    def first_broken(self, mine, wanted, case):
        """(observed, expected, where to look) of the first rule that is broken; None if all hold.

        Args:
            mine, wanted: By rank, what the learner's function, and ours, left.
        """
        for rule in self.rules:
            words = rule.broken(mine, wanted, case)
            if words:
                observed, expected = words
                look = rule.look(case) if callable(rule.look) else rule.look
                return observed, expected, look
        return None

    def _placed(self, feedback, world_size, words, logs):
        """The feedback, with the number of ranks and the case in front."""
        places = []
        if len(self.world_sizes) > 1:
            places.append("1 rank" if world_size == 1 else f"{world_size} ranks")
        if words:
            places.append(words)
        observed = feedback.observed
        if places:
            observed = f"{', '.join(places)}: {observed}"
        return replace(feedback, observed=observed, logs=tuple(logs))

    # ------------------------------------------------------------------------------------- which mistake it is

    def _recognised(self, answer):
        """Where to look, if a mistake leaves the same as the learner's function; else None."""
        if self.slow:
            return None
        looks = {as_function(self.answer, row): row.look for row in self.mistakes if row.sign is None}
        candidates = list(looks)
        has_run = False
        for world_size in self.world_sizes:
            if not candidates:
                return None
            *left, mine = self.left_by([*candidates, answer], world_size)
            if mine is not None:  # None: this launch failed, and tells nothing of any mistake
                has_run = True
                pairs = zip(candidates, left, strict=True)
                candidates = [function for function, theirs in pairs if first_difference(mine, theirs, 1e-6) is None]
        if not has_run or not candidates:
            return None
        # Of several that leave the same, the one that is written most like it.
        return looks[max(candidates, key=lambda function: _alike(answer, function))]

    def left_by(self, functions, world_size):
        """For each function, what it left, by rank and case; None for all, where the ranks have failed."""
        from helpers.launcher import RankError, launch

        try:
            run = launch(in_rank.one_after_the_other, world_size, (type(self), functions),
                         timeout=3 * self.timeout, show=False)
        except RankError:  # a mistake that does not return is a `stop`: the generic test says which
            return [None] * len(functions)
        return [list(left) for left in zip(*run.results, strict=True)]

    def _stopped(self, feedback, lost=None):
        """The feedback, with where to look of the first `stop` whose sign it shows."""
        for row in self.mistakes:
            if isinstance(row.sign, str):
                recognised = row.sign in feedback.observed
            else:
                recognised = row.sign and lost and row.sign(lost)
            if recognised:
                return replace(feedback, where_to_look=row.look)
        return feedback

    # ------------------------------------------------------------------------------- where ranks do not return

    def _of_failure(self, error, answer):
        """Feedback on a `RankError`, in terms of the learner's own code."""
        # Of ranks that fail together, the lowest: who was quicker says nothing about the code.
        first = min(error.failures, key=lambda failure: (failure.is_consequence, failure.is_hang, failure.rank))
        file = getattr(getattr(inspect.unwrap(answer), "__code__", None), "co_filename", None)
        frames = _FRAME.findall(first.traceback)
        if frames and frames[-1][0] in (file, in_rank.__file__) and "raise NotImplementedError" in frames[-1][3]:
            return _NO_ATTEMPT  # not so if torch raised it, which does not support this or that
        feedback = self.known_failure(error)
        if feedback is None:
            own_frames = [frame for frame in frames if frame[0] == file]
            exercises = os.path.dirname(inspect.getfile(type(self)))
            # In `observe`, after the function.
            is_after = bool(frames) and not own_frames and os.path.dirname(frames[-1][0]) == exercises
            observed = self._in_words(first, error, is_after)
            expected, look = self._advice(first, own_frames, is_after)
            feedback = Feedback(NOT_YET, observed, expected, look, logs=tuple(error.logs))
        return self._stopped(feedback)

    def known_failure(self, error):
        """Feedback on a `RankError` whose words mean something in exercises of this kind; else None."""
        return None

    def _advice(self, failure, own_frames, is_after):
        """(expected, where to look), by where the learner's code was when it failed."""
        returns = "it returns" if self._has_one_rank() else "it returns in every rank"
        if own_frames:
            _, line, function, code = own_frames[-1]
            return returns, f"`{code}` (line {line}, in {function})"
        if failure.is_hang:
            look = "a loop without end"
            if not self._has_one_rank():
                look += "; or what a rank waits for: does every rank come to the same collectives?"
            return f"{returns} within {failure.limit:g} s", look
        if is_after:
            return "what the task describes", "what your function returns, and its type"
        return f"{returns}, and what it returns can be sent to the notebook", ""

    def _in_words(self, failure, error, is_after):
        """What is observed of a failed rank; where there is only one, of the function."""
        who = f"rank {failure.rank} of {len(error.logs)}"
        if self._has_one_rank():
            who = "the check of what came back" if is_after else "your function"
        if failure.is_hang:
            words = _hang_in_words(error)
            return words.replace("rank 0 was", "your function was") if self._has_one_rank() else words
        words = f"failed: {failure.message}"
        if failure.traceback and not failure.message.startswith("SystemExit"):
            words = f"raised {failure.message}"
        return _SIGNATURES.sub("", _RELAYED.sub(": ", f"{who} {words}"))

    def _has_one_rank(self):
        return self.world_sizes == (1,)

    def _of_the_lost(self, lost):
        """Feedback where ranks waited in vain; `lost` holds a `Lost` of each."""
        lines = lost[0].lines
        if len(set(lines)) == 1:
            observed = f"every rank waited in vain at `{lines[0]}`"
        else:
            places = []
            for rank, line in enumerate(lines):
                where = f"waited in vain at `{line}`" if line else "had returned"
                places.append(f"rank {rank} {where}")
            observed = ", ".join(places)
        return self._stopped(not_yet(observed, "every rank returns", self.waiting), lost)


def _hang_in_words(error):
    from helpers.launcher.errors import where_was

    # In a group, a rank whose function has returned waits for those of the others (`waits.meet`).
    returned = {failure.rank for failure in error.failures if failure.line and failure.line.function == "meet"}
    if not returned:
        return str(error)
    places = []
    for failure in error.failures:
        has_returned = failure.rank in returned
        places.append(f"rank {failure.rank} had returned" if has_returned else where_was(failure))
    return f"no result after {error.failures[0].limit:g} s: " + "\nand ".join(places)


def _misfit(answer, ours):
    """Feedback where the learner's function cannot be called as ours can; else None."""
    wanted = inspect.signature(ours)
    try:
        has = inspect.signature(answer)
    except (TypeError, ValueError):
        return None  # some builtins have none
    try:
        has.bind(*wanted.parameters)
    except TypeError as error:
        return not_yet(f"your function takes `{has}`: {error}", f"`{wanted}`", "the line that starts with `def`")
    return None


def _syntax_error_in_cell(name):
    """The SyntaxError of the cell that last defined `name`, if any: the function is then an older one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return None
    cells = [cell for cell in shell.user_ns.get("In", ()) if f"def {name}(" in cell]
    if not cells:
        return None
    try:
        compile(shell.transform_cell(cells[-1]), "<cell>", "exec")
    except SyntaxError as error:
        return error
    return None


def _alike(function, other):
    """From 0 to 1: how much two functions' sources have in common."""
    try:
        return difflib.SequenceMatcher(None, inspect.getsource(function), inspect.getsource(other)).ratio()
    except (OSError, TypeError):
        return 0.0


def _busy():
    """Whether so much else runs on this machine that a time limit says nothing."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 2 * os.cpu_count()
