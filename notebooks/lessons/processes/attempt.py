"""Call something that starts a child, and hear both: what the parent raises, and the child's error stream."""

import contextlib
import os
import re
import tempfile


def attempt(call):
    """Call it. If it raises, print the error, and the last line that a child has written to its error stream."""
    with reading_stderr() as said:
        try:
            call()
        except Exception as error:
            print("the parent says:", error)
    if said:
        print("the child says: ", said[-1])


@contextlib.contextmanager
def reading_stderr():
    """A list that holds the lines when the block has ended, without colours. A child shares file descriptor 2."""
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
