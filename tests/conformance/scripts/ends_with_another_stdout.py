"""What was printed to a file in the place of stdout is in the file."""
import os
import sys


class Tee:
    def __init__(self, *files):
        self.files = files

    def write(self, text):
        for file in self.files:
            file.write(text)

    def flush(self):
        [file.flush() for file in self.files]


sys.stdout = Tee(sys.stdout, open(f"copy-{os.environ['RANK']}", "w"))
print("to both")
sys.stderr = open(f"errors-{os.environ['RANK']}", "w")
print("an error", file=sys.stderr)
