"""Where standard output cannot be flushed, the exit code is 120. Files are written all the same."""
# nprocs: 1
import sys


class Full:
    def write(self, text):
        return len(text)

    def flush(self):
        raise OSError("no space left")


sys.stdout = Full()
log = open("log", "w")
log.write("all")
