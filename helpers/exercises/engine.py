"""What every exercise can do: check the learner's function in real ranks, give a hint, show a solution.

An exercise is one class, in the module of its lesson, and one instance with the same name in small letters:

    class FirstRank(Exercise):
        title, task = "Who am I?", "Return this rank's number."
        hints = ("`torchrun` and `launch` put it into the environment.",)
        explanation, why = "…shown with the solution…", "…shown when it is solved…"

        @staticmethod
        def stub():              # what the notebook's cell holds at first; its parameters are those of every answer
            raise NotImplementedError

        @staticmethod
        def answer():            # `.solution()` shows its source
            return int(os.environ["RANK"])

        @wrong("rank 1 answered 0")                 # what its feedback must say; at least three of them
        def a_number_by_heart():
            return 0

        @staticmethod
        def probe(answer):       # in every rank: call the learner's function, return plain observations
            return answer()

        def judge(self, observed):                  # in the notebook: the observations, by rank
            for rank, number in enumerate(observed):
                if number != rank:
                    return not_yet(f"rank {rank} answered {number}", f"{rank}")

    first_rank = FirstRank()

The module's LESSON names its notebook, for example `LESSON = "00_start_here"`.
"""

import functools
import html
import inspect
import os
import re
import textwrap
import time
from dataclasses import dataclass, replace

from helpers.exercises.progress import STATUSES, record

NOT_ATTEMPTED, NOT_YET, CORRECT = STATUSES

# Middle tones, readable as a border on white and on black. The sign and the words say the same without them.
_LOOK = {NOT_ATTEMPTED: ("○", "#808080"), NOT_YET: ("✘", "#c77700"), CORRECT: ("✔", "#2e9e4f")}
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?', re.MULTILINE)


@dataclass(frozen=True, repr=False)
class Feedback:
    """The answer of a check. True if it is "correct"; two executions of the same check read the same."""

    status: str
    """"not attempted", "not yet" or "correct"."""
    observed: str = ""
    expected: str = ""
    where_to_look: str = ""
    why_it_matters: str = ""
    title: str = ""
    logs: tuple = ()
    """By rank: what the learner's code printed."""

    def __bool__(self):
        return self.status == CORRECT

    def _rows(self):
        rows = {name.replace("_", " "): getattr(self, name)
                for name in ("observed", "expected", "where_to_look", "why_it_matters")}
        if any(self.logs):
            rank = next(rank for rank, log in enumerate(self.logs) if log)
            rows["printed"] = f"`print(_.logs[{rank}])` in the next cell shows what rank {rank} printed"
        return {name: _readable(text) for name, text in rows.items() if text}

    def __repr__(self):
        rows = [textwrap.indent(f"{name}: {text}", "    ").lstrip() for name, text in self._rows().items()]
        return "\n  ".join([f"{_LOOK[self.status][0]} {self.status}: {self.title}", *rows])

    def _repr_html_(self):
        sign, colour = _LOOK[self.status]
        rows = "".join(f'<div style="white-space: pre-wrap"><em>{name}:</em> {as_html(text)}</div>'
                       for name, text in self._rows().items())
        return (f'<div style="border-left: 5px solid {colour}; padding: 2px 12px">'
                f"<strong>{sign} {self.status}:</strong> {as_html(self.title)}{rows}</div>")


def not_yet(observed, expected, where_to_look=""):
    """What `judge` returns for a wrong answer. Text between backticks is shown as code."""
    return Feedback(NOT_YET, observed, expected, where_to_look)


def wrong(fragment):
    """Mark a function in an exercise's class as a plausible wrong answer; its feedback must hold `fragment`."""

    def mark(function):
        function.fragment = fragment
        return staticmethod(function)

    return mark


class Note:
    """Markdown that a notebook renders and a terminal shows as it is."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    _repr_markdown_ = __repr__


class Exercise:
    """One exercise; a subclass fills in what the module's docstring shows. Alone in a cell it shows its task."""

    title = task = explanation = why = ""
    hints = ()
    world_sizes = (2,)
    """The learner's code is run in a launch of each of these numbers of ranks; `judge` sees one launch at a time."""
    timeout = 20
    """Seconds for one launch; the least that the solution never needs, for a learner waits that long for a hang."""

    def __init__(self):
        self.name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        self.lesson = type(self).__module__.rpartition(".")[2]
        self.wrong = [value for value in (getattr(type(self), name) for name in vars(type(self)))
                      if hasattr(value, "fragment")]
        self._hints_given = 0

    def check(self, answer):
        """Run the learner's function in real ranks, keep the progress, and return the `Feedback`.

        Raises:
            KeyboardInterrupt: the cell was interrupted.
            RuntimeError, OSError: no rank can be started here at all; never because of what the learner wrote.
        """
        feedback = self._refused(answer)
        if feedback is None:  # and not `or`: only "correct" is true
            feedback = self._tried(answer)
        feedback = replace(feedback, title=self.title)
        record(f"{self.lesson}.{self.name}", feedback.status)
        return feedback

    def hint(self):
        """The next hint; after the last one, a word that there are no more."""
        self._hints_given += 1
        if self._hints_given > len(self.hints):
            return Note("There are no more hints. `.solution()` shows one way to do it.")
        return Note(f"**Hint {self._hints_given} of {len(self.hints)}:** {self.hints[self._hints_given - 1]}")

    def solution(self):
        """One right answer, and why it is one."""
        return Note(f"{self._source('answer')}\n\n{self.explanation}")

    def __repr__(self):
        return f"**{self.title}**\n\n{self.task}\n\n{self._source('stub')}"

    _repr_markdown_ = __repr__

    def _source(self, which):
        source = textwrap.dedent(inspect.getsource(getattr(type(self), which))).removeprefix("@staticmethod\n")
        return f"```python\n{source.replace(f'def {which}(', f'def {self.name}(', 1).rstrip()}\n```"

    def _refused(self, answer):
        """Feedback on something that cannot be run in a rank; None if it can be tried."""
        if answer is ...:
            return self._not_attempted()
        if not callable(answer) or isinstance(answer, type):
            given = "None" if answer is None else f"a {'class' if isinstance(answer, type) else type(answer).__name__}"
            return not_yet(f"check() was given {given}", "the function itself",
                           f"write `check({self.name})`: the function's name, without parentheses after it")
        wanted = inspect.signature(type(self).stub)
        try:
            has = inspect.signature(answer)
        except (TypeError, ValueError):
            return None  # some builtins have none
        try:
            has.bind(*wanted.parameters)
        except TypeError as error:
            return not_yet(f"your function takes `{has}`: {error}", f"`{wanted}`", "the line that starts with `def`")
        return None

    def _tried(self, answer):
        from helpers.launcher import RankError, arguments, launch, server  # here, because it starts the fork server

        server.wait_until_ready()  # the time limit is the learner's, not the first import of torch's
        for world_size in self.world_sizes:
            try:
                run = launch(_in_rank, world_size, (type(self).probe, answer), timeout=self.timeout, show=False)
            except RankError as error:
                return self._of_error(error, answer)
            except TypeError as error:  # the one thing to refuse here: the answer cannot be pickled
                culprit = arguments.unsendable(answer, ()) or "your function"
                return not_yet(re.sub("^argument 1, a .*?, cannot", f"{culprit} cannot", str(error)),
                               "a function that can be sent to another process", "what it uses from outside itself")
            try:
                feedback = self.judge(run.results)
            except Exception as error:
                feedback = not_yet(f"the check cannot read what came back ({type(error).__name__}: {error})",
                                   "what the task describes", "what your function returns, and its type")
            if feedback is not None:
                return replace(feedback, logs=tuple(run.logs))
        return Feedback(CORRECT, why_it_matters=self.why)

    def _of_error(self, error, answer):
        """Feedback on a `RankError`, in terms of the learner's own code."""
        first, file = error.failures[0], getattr(getattr(inspect.unwrap(answer), "__code__", None), "co_filename", None)
        frames = _FRAME.findall(first.traceback)
        if frames and frames[-1][0] in (file, __file__) and frames[-1][3].startswith("raise NotImplementedError"):
            return self._not_attempted()  # not so if torch raised it, which does not support this or that
        observed = str(error).replace(" failed first (exit code 1):", " raised", 1)
        own = [f"`{code}` (line {line}, in {function})" for name, line, function, code in frames if name == file]
        if own:
            expected, look = "it returns in every rank", own[-1]
        elif first.exitcode is None:
            expected = f"it returns in every rank within {self.timeout:g} s"
            look = "a loop without end; or what a rank waits for: does every rank come to the same collectives?"
        else:
            expected, look = "it returns in every rank, and what it returns can be sent to the notebook", ""
        return Feedback(NOT_YET, observed, expected, look, logs=tuple(error.logs))

    def _not_attempted(self):
        return Feedback(NOT_ATTEMPTED, where_to_look="put your own code where `raise NotImplementedError` or `...` "
                                                     "stands, run that cell, then this one; `.hint()` helps")


def exercises_of(module):
    """The exercises of a lesson's module, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def as_html(text):
    """Plain text with `code` between backticks, as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _readable(text, limit=1500):
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text)  # an address differs every time
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _in_rank(probe, answer):
    """What every rank runs."""

    @functools.wraps(answer)
    def asked(*args, **kwargs):
        result = answer(*args, **kwargs)
        if result is ...:
            raise NotImplementedError
        return result

    try:
        return probe(asked)
    except BaseException as error:
        # Lower ranks tell first, so that the same mistake made in every rank reads the same in every execution.
        time.sleep(0.1 * int(os.environ["RANK"]))
        if isinstance(error, SystemExit):  # which launch would take for a rank that has done its work
            raise RuntimeError("the code left with sys.exit()").with_traceback(error.__traceback__) from None
        raise
