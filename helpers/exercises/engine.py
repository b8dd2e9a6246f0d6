"""What every exercise can do: check the learner's function in real ranks, give a hint, show a solution.

An exercise is one class, in the module of its lesson, and one instance with the same name in small letters.
Its name is that of no exercise of another lesson. `helpers.exercises.tables` shows one, and compares what
ranks observed; where the learner's function talks to other ranks, `InGroup` of `helpers.exercises.group` is a
base too; where it only computes, in one rank, `Alone` of `helpers.exercises.alone`. `answer` and `observe`
run in ranks, and take no `self`; of its file, `answer` uses imported modules alone.
"""

import functools
import html
import inspect
import os
import re
import sys
import tempfile
import textwrap
import types
from dataclasses import dataclass, replace

from helpers.exercises import journal
from helpers.reporting import RUN_FOLDER

NOT_ATTEMPTED, NOT_YET, CORRECT = journal.STATUSES

#: Seconds in which the other ranks may fail as well, once one has: the feedback then names the lowest.
GRACE = 2

# Middle tones, readable as a border on white and on black. The sign and the words say the same without them.
RIGHT, WRONG = "#2e9e4f", "#c77700"  # the colours of what holds, and of what does not
_LOOK = {NOT_ATTEMPTED: ("○", "#808080"), NOT_YET: ("✘", WRONG), CORRECT: ("✔", RIGHT)}
# What can be asked for its name and its parameters without running code of the learner's.
_FUNCTIONS = types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)(?:\n    (.*))?', re.MULTILINE)
#: The traceback in the message of an error that a loader's worker, or a replica's thread, has passed on.
_RELAYED = re.compile(r"\.\nOriginal Traceback(?s:.*)\n .*\n")


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


#: What `judge` may return where a rank had no core to run on, and reached a limit: the check tries again.
TOO_BUSY = not_yet("this machine is too busy to tell whether your function waits for ever",
                   "an answer in time", "nothing in your code: run this cell again when less else is running")
#: By how much all limits grow in the second try.
SLOWLY = 8


class Note(str):
    """Markdown that a notebook renders and a terminal shows as it is."""

    __repr__ = _repr_markdown_ = str.__str__


class Exercise:
    """One exercise: its words, and how a check runs it. Alone in a cell it shows its task."""

    title = task = explanation = why = ""
    hints = ()
    world_sizes = (1,)
    """The learner's code is run in a launch of each of these numbers of ranks."""
    cases = {"": None}
    """{the case in words, with which its feedback begins: what `observe` and `judge` are given}."""
    timeout = 20
    """Seconds for one launch: as few as the solution allows, because a learner waits that long for a hang."""

    def __init_subclass__(cls):
        for name in ("answer", "observe"):
            if name in vars(cls):
                setattr(cls, name, staticmethod(vars(cls)[name]))

    def __init__(self):
        self.name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        self.lesson = type(self).__module__.split(".")[-2]
        self.key = f"{self.lesson}.{self.name}"  # in the learner's progress
        self._hints_given = 0

    @classmethod
    def run(cls, answer, case, slowly):
        """What a rank does for one case; limits of its own are multiplied by `slowly`."""
        return cls.observe(answer, case)

    @staticmethod
    def ends_after(observed):
        """Whether, after what a rank observed in a case, the cases after it make no sense."""
        return False

    def check(self, answer):
        """Run the learner's function in real ranks, keep the progress, and return the `Feedback`.

        Raises:
            KeyboardInterrupt: the cell was interrupted.
            RuntimeError, OSError: no rank can be started here at all; the learner's code is never the reason.
        """
        if callable(answer) and not isinstance(answer, (type, *_FUNCTIONS)):
            call = inspect.getattr_static(type(answer), "__call__")  # the object's attributes may do anything
            answer = call.__get__(answer, type(answer)) if hasattr(call, "__get__") else call
        feedback = self._refused(answer)
        if feedback is None:  # and not `or`: only "correct" is true
            feedback = self._tried(answer)
        feedback = replace(feedback, title=self.title)
        journal.record(self.key, feedback.status, _cause(feedback))
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
        source = textwrap.dedent(inspect.getsource(self.answer)).rstrip()
        source = source.replace("def answer(", f"def {self.name}(", 1)
        return Note(f"```python\n{source}\n```\n\n{self.explanation}")

    def __repr__(self):
        stub = f"def {self.name}{inspect.signature(self.answer)}:\n    raise NotImplementedError"
        return f"**{self.title}**\n\n{self.task}\n\n```python\n{stub}\n```"

    def _repr_markdown_(self):
        journal.begin(self.key)
        return repr(self)

    def _refused(self, answer):
        """Feedback on something that cannot be run in a rank; None if it can be tried."""
        if answer is ...:
            return self._not_attempted()
        if not callable(answer) or isinstance(answer, type):
            given = "class" if isinstance(answer, type) else type(answer).__name__
            return not_yet(f"check() was given a {given}", "the function itself",
                           f"write `check({self.name})`: the function's name, without parentheses after it")
        if error := _syntax_error_in_cell(getattr(answer, "__name__", "")):
            return not_yet(f"the cell that last defined `{answer.__name__}` did not run: "
                           f"SyntaxError: {error.msg}, at `{(error.text or '').strip()}`",
                           "a cell that runs; until then an older function is there",
                           f"line {error.lineno} of that cell")
        wanted = inspect.signature(self.answer)
        try:
            has = inspect.signature(answer)
        except (TypeError, ValueError):
            return None  # some builtins have none
        try:
            has.bind(*wanted.parameters)
        except TypeError as error:
            return not_yet(f"your function takes `{has}`: {error}", f"`{wanted}`",
                           "the line that starts with `def`")
        return None

    def _tried(self, answer):
        from helpers.launcher import client  # here, because it starts the fork server

        client.wait_until_ready()  # the time limit is the learner's, not the first import of torch's
        for world_size in self.world_sizes:
            feedback = self._in_ranks(answer, world_size)
            if feedback is not None:
                return feedback
        return Feedback(CORRECT, why_it_matters=self.why)

    def _in_ranks(self, answer, world_size, slowly=1):
        """Feedback on one launch, its limits multiplied by `slowly`; None if nothing was wrong."""
        from helpers.launcher import RankError, arguments, launch

        try:
            run = launch(_in_rank, world_size, (type(self), answer, slowly), show=False, grace=GRACE,
                         timeout=slowly * self.timeout)
        except RankError as error:
            if error.exitcode is None and slowly == 1 and _busy():
                return self._in_ranks(answer, world_size, SLOWLY)
            return self._of_error(error, answer)
        except TypeError as error:  # the one thing to refuse here: the answer cannot be pickled
            culprit = arguments.unsendable(answer, ()) or "your function"
            return not_yet(re.sub("^argument 1, a .*?, cannot", f"{culprit} cannot", str(error)),
                           "a function that can be sent to another process",
                           "what it uses from outside itself")
        by_case = zip(*run.results, strict=True)
        # Not strict: after a case in which the ranks stopped (`ends_after`), the later cases have not run.
        for (words, case), seen in zip(self.cases.items(), by_case, strict=False):
            feedback = self._judged(list(seen), case)
            if feedback is TOO_BUSY and slowly == 1:
                return self._in_ranks(answer, world_size, SLOWLY)
            if feedback is not None:
                ranks = f"{world_size} rank{'s' * (world_size != 1)}" if len(self.world_sizes) > 1 else ""
                where = ", ".join(filter(None, [ranks, words]))
                observed = f"{where}: {feedback.observed}" if where else feedback.observed
                return replace(feedback, observed=observed, logs=tuple(run.logs))
        return None

    def _judged(self, seen, case):
        try:
            return self.judge(seen, case)
        except Exception as error:
            return not_yet(f"the check cannot read what came back ({type(error).__name__}: {error})",
                           "what the task describes", "what your function returns, and its type")

    def _of_error(self, error, answer):
        """Feedback on a `RankError`, in terms of the learner's own code."""
        # Of ranks that fail together, the lowest: who was quicker says nothing about the code.
        first = min(error.failures, key=lambda one: (one.is_consequence, one.exitcode is None, one.rank))
        file = getattr(getattr(inspect.unwrap(answer), "__code__", None), "co_filename", None)
        frames = _FRAME.findall(first.traceback)
        if frames and frames[-1][0] in (file, __file__) and "raise NotImplementedError" in frames[-1][3]:
            return self._not_attempted()  # not so if torch raised it, which does not support this or that
        if first.exitcode is None:
            observed = str(error)
        else:
            raised = first.traceback and not first.message.startswith("SystemExit")
            said = f"raised {first.message}" if raised else f"failed: {first.message}"
            observed = _RELAYED.sub(": ", f"rank {first.rank} of {len(error.logs)} {said}")
        own = [f"`{code}` (line {line}, in {function})"
               for name, line, function, code in frames if name == file]
        if own:
            expected, look = "it returns in every rank", own[-1]
        elif first.exitcode is None:
            expected = f"it returns in every rank within {self.timeout:g} s"
            look = ("a loop without end; or what a rank waits for: "
                    "does every rank come to the same collectives?")
        elif frames and frames[-1][0] == inspect.getfile(type(self)):  # in `observe`, after the function
            expected, look = "what the task describes", "what your function returns, and its type"
        else:
            expected, look = "it returns in every rank, and what it returns can be sent to the notebook", ""
        return Feedback(NOT_YET, observed, expected, look, logs=tuple(error.logs))

    def _not_attempted(self):
        look = ("put your own code where `raise NotImplementedError` or `...` stands, "
                "run that cell, then this one; `.hint()` helps")
        return Feedback(NOT_ATTEMPTED, where_to_look=look)


def as_html(text):
    """Plain text with `code` between backticks, as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _readable(text, limit=1500):
    # An address and a run's folder differ every time.
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text).replace("a NoneType", "None")
    text = re.sub(r"(?<![^\s'\"`])[^\s'\"`]*/helpers-ranks-[\w-]+/", "…/", text)
    text = re.sub(r"\ba (?=(array|int|islice|object|OrderedDict)\b)", "an ", text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _cause(feedback):
    """One name for all who made the same mistake: where to look, without numbers and the learner's code."""
    text = feedback.where_to_look
    if not text or re.search(r"\bline \d", text):  # of their own code
        text = re.sub("`[^`]*`", "`…`", feedback.observed)
        text = re.sub(r"(?<= raised )(\w+).*|, in \w+(?=\))", r"\1", text)
    return re.sub(r"\d+([.,]\d+)*", "#", text.partition("\n")[0])[:120]


def _syntax_error_in_cell(name):
    """The SyntaxError of the cell that last defined `name`, if any: the function is then an older one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = [cell for cell in shell.user_ns.get("In", ()) if f"def {name}(" in cell] if shell else []
    try:
        compile(shell.transform_cell(cells[-1]) if cells else "", "<cell>", "exec")
    except SyntaxError as error:
        return error
    return None


def _busy():
    """Whether so much else runs on this machine that a time limit says nothing."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 2 * os.cpu_count()


def scratch():
    """For `observe`: a temporary folder, as a context; it goes with the run, even if the rank is killed."""
    return tempfile.TemporaryDirectory(dir=os.environ[RUN_FOLDER])


def _in_rank(exercise, answer, slowly):
    """What every rank runs: each case in turn; by case, what it observed."""

    @functools.wraps(answer)
    def asked(*args, **kwargs):
        result = answer(*args, **kwargs)
        if result is ...:
            raise NotImplementedError
        return result

    observed = []
    for words, case in exercise.cases.items():
        try:
            observed.append(exercise.run(asked, case, slowly))
        except SystemExit as error:  # which launch would take for a rank that has done its work
            raise RuntimeError("the code left with sys.exit()").with_traceback(error.__traceback__) from None
        except Exception as error:
            if words:  # also of an error without a word, such as StopIteration
                error.args = (f"given {words}: {error}".rstrip(": "), *error.args[1:])
            raise
        if exercise.ends_after(observed[-1]):
            break
    return observed
