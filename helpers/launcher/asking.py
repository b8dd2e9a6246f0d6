"""What a rank asks the notebook while it runs: a line from the person (`input`, and so `breakpoint`).

The question is a file, the answer another. So only the rank itself asks, and no process that it has forked.
"""

import builtins
import json
import os
import sys
import threading
import time

from helpers.launcher import output
from helpers.launcher.files import write


def have_input_ask_the_notebook(files):
    """In a rank; EOFError where nobody can answer."""
    own_pid = os.getpid()
    pythons_input = builtins.input
    one_at_a_time = threading.Lock()

    def asking_input(prompt=""):
        if os.getpid() != own_pid:
            return pythons_input(prompt)
        with one_at_a_time:
            write(files.question, str(prompt).encode())
            while not files.answer.exists():
                time.sleep(0.01)
            line = json.loads(files.answer.read_bytes())
            files.answer.unlink()
        if line is None:
            return pythons_input(prompt)  # a rank has no standard input, so this raises EOFError
        return line

    builtins.input = asking_input


def answer(rank, files):
    """In the notebook: answer what a rank asks."""
    prompt = files.question.read_text(encoding="utf-8")
    files.question.unlink()
    write(files.answer, json.dumps(_line(f"[{rank}] {prompt}")).encode())


def _line(prompt):
    """What the person types; None where nobody is there (nbval, papermill, a plain script)."""
    try:
        if output.in_a_notebook() or sys.stdin.isatty():
            return input(prompt)
    except (EOFError, NotImplementedError):  # the second: the notebook's front end allows no questions
        pass
    return None
