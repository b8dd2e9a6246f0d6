"""What a rank asks the notebook while it runs: a line from the person (`input`), or what a cell has defined.

The question is a file, the answer another. So only the rank itself asks, and no process that it has forked.
"""

import builtins
import json
import os
import sys
import threading
import time

from helpers.launcher import output, sending
from helpers.launcher.files import write

_ask = None  # set in a rank


def answer_input_with(files):
    """In a rank: have `input`, and so `breakpoint`, ask the notebook; EOFError where nobody can answer."""
    global _ask
    me, read, one_at_a_time = os.getpid(), builtins.input, threading.Lock()

    def ask(kind, text):
        if os.getpid() != me:
            return b""
        with one_at_a_time:
            write(files.question, json.dumps([kind, text]).encode())
            while not files.answer.exists():
                time.sleep(0.01)
            answer = files.answer.read_bytes()
            files.answer.unlink()
            return answer

    def asking_input(prompt=""):
        line = json.loads(ask("input", str(prompt)) or "null")
        return read(prompt) if line is None else line

    _ask, builtins.input = ask, asking_input


def in_the_notebook(name):
    """The `__getattr__` of a rank's `__main__`: what a cell has defined, for an object from a file, say."""
    answer = None if name.startswith("__") else _ask("name", name)
    if not answer:
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
    value = vars(sys.modules["__main__"])[name] = sending.unpacked(answer)
    return value


def answer(rank, files):
    """In the notebook: answer what a rank asks."""
    kind, text = json.loads(files.question.read_bytes())
    files.question.unlink()
    write(files.answer, _line(f"[{rank}] {text}") if kind == "input" else _named(text))


def _line(prompt):
    """What the person types, as JSON; null where nobody is there (nbval, papermill, a plain script)."""
    try:
        can_ask = output.in_a_notebook() or sys.stdin.isatty()
        return json.dumps(input(prompt) if can_ask else None).encode()
    except (EOFError, NotImplementedError):  # the second: the notebook's front end allows no questions
        return b"null"


def _named(name):
    """What `name` is in the notebook, packed; nothing if it is not there or cannot be sent."""
    main = vars(sys.modules["__main__"])
    try:
        return sending.packed(main[name]) if name in main else b""
    except Exception:
        return b""
