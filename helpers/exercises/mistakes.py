"""Mistakes that people make, as rows of an exercise: other text for lines of its answer, which have names.

    def answer(tensor):
        …
            take += received            #: add

    mistakes = (
        mistake("in the first half, what comes in is added to yours", add="take.copy_(received)"),
        stop("waited in vain", "who receives?", exchange="dist.send(give, (rank + 1) % n)"),
        mistake("the task asks for the sum", a_whole_function),
    )

A name stands at the end of the first line of a statement, `#: name`; it is no keyword of Python. The text that
replaces the statement is indented as it was; an empty text takes it away; one that ends in a colon replaces its
header alone.
"""

import ast
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable
from typing import NamedTuple

_NAME = re.compile(r"[ ]*#: (\w+)$", re.MULTILINE)


class Mistake(NamedTuple):
    """What people write in place of the answer, and where it is told them to look."""

    look: str
    function: Callable | None
    """What they write, where it is no small change of the answer."""
    lines: dict
    """{name of a line: the text that replaces it}"""
    place: str
    """The file and the line in which the mistake stands."""
    sign: str | Callable | None = None
    """How a check recognises what waits in vain, or raises: words of the feedback, or a function of each rank's
    `Lost`. None for what returns: a check recognises it because it leaves the same observations."""


def mistake(look, function=None, /, **lines):
    """A mistake that returns. A check runs it beside the learner's function, and compares what the two leave."""
    return Mistake(look, function, lines, _callers_place())


def stop(sign, look, function=None, /, **lines):
    """A mistake that waits in vain, or raises. No check runs it: its `sign` says how it is recognised."""
    return Mistake(look, function, lines, _callers_place(), sign)


def _callers_place():
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def refuse_unsound(answer, mistakes):
    """Raise a ValueError, with file and line, for a mistake that cannot be made of the answer, or changes nothing."""
    source = _source(answer)
    statements = _named_statements(source)
    unchanged = _without_names(source)
    for row in mistakes:
        if bool(row.function) == bool(row.lines):
            raise ValueError(f"{row.place}: a mistake is other text for lines of the answer, or a function")
        for name, text in row.lines.items():
            if name not in statements:
                names = ", ".join(statements) or "none"
                raise ValueError(f"{row.place}: no line of the answer is named {name!r}; there are: {names}")
            if text.endswith(":") and not hasattr(statements[name], "body"):
                raise ValueError(f"{row.place}: {text!r} is a header, and the line {name!r} has none")
            if _edited(source, statements, {name: text}) == unchanged:
                raise ValueError(f"{row.place}: the line {name!r} would be what it is in the answer")
        try:
            ast.parse(_edited(source, statements, row.lines))
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{row.place}: {error}") from None


def as_function(answer, row):
    """What people write, as a function."""
    if row.function:
        return row.function
    source = _source(answer)
    edited = _edited(source, _named_statements(source), row.lines)
    return compiled(answer, edited, f"<answer with {row.lines}>")


def compiled(answer, source, name):
    """Another source of `answer` as a function, which finds the modules that the answer's file imports."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # for inspect, and tracebacks
    modules = {key: value for key, value in answer.__globals__.items() if inspect.ismodule(value)}
    scope = {"__name__": "a_notebook", **modules}
    exec(compile(source, name, "exec"), scope)
    return scope["answer"]


def source_for_learners(answer):
    """The source of an answer, without the names of its lines."""
    return _without_names(_source(answer))


def _without_names(source):
    return _NAME.sub("", source)


def _source(answer):
    return textwrap.dedent(inspect.getsource(answer))


def _named_statements(source):
    """{name: the statement, of the syntax tree, at whose first line it stands}"""
    by_line = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            by_line.setdefault(node.lineno, node)  # the outermost, which comes first
    named = {}
    for number, line in enumerate(source.splitlines(), start=1):
        label = _NAME.search(line)
        if label:
            if label[1] in named or number not in by_line:
                raise ValueError(f"line {number} of an answer, {line.strip()!r}: "
                                 "a name stands once, on the first line of a statement")
            named[label[1]] = by_line[number]
    return named


def _edited(source, statements, lines):
    """The source of an answer with {name: text} of `lines` in the place of its named statements."""
    text = source.splitlines()
    below = len(text) + 1  # the line that was edited before
    # From the last to the first, so that the numbers of the lines above stay what they are.
    for name in sorted(lines, key=lambda name: statements[name].lineno, reverse=True):
        statement, replacement = statements[name], lines[name]
        end = statement.end_lineno
        if replacement.endswith(":"):  # a header: its body stays
            end = statement.body[0].lineno - 1
        if end >= below:
            raise ValueError(f"the line {name!r} is replaced as a whole, and so is one in it")
        below = statement.lineno
        indent = " " * statement.col_offset
        text[statement.lineno - 1:end] = textwrap.indent(replacement, indent).splitlines()
        if not replacement and not _parses(text):  # the statement was alone in its block
            text.insert(statement.lineno - 1, f"{indent}pass")
    return _without_names("\n".join(text) + "\n")


def _parses(lines):
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True
