"""Catch what a child process writes to its error stream: file descriptor 2, shared with its parent."""

import contextlib
import os
import re
import tempfile


@contextlib.contextmanager
def reading_stderr():
    """A list that holds the lines when the block has ended, without colours."""
    lines = []
    original = os.dup(2)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            text = re.sub(r"\x1b\[[\d;]*m", "", file.read())
            lines += text.splitlines()
