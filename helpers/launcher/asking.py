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


def answer_input_with(files):
    """In a rank: have `input` ask the notebook; EOFError where nobody can answer."""
    rank, read, one_at_a_time = os.getpid(), builtins.input, threading.Lock()

    def asking_input(prompt=""):
        if os.getpid() != rank:
            return read(prompt)
        with one_at_a_time:
            write(files.question, str(prompt).encode())
            while not files.answer.exists():
                time.sleep(0.01)
            line = json.loads(files.answer.read_bytes())
            files.answer.unlink()
        return read(prompt) if line is None else line

    builtins.input = asking_input


def answer(rank, files):
    """In the notebook: answer what a rank asks."""
    prompt = files.question.read_text()
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
