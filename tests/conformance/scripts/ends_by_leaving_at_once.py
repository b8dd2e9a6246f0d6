"""os._exit(0) is success. Nothing runs any more, a file's buffer is lost; but all that was printed is there."""
import atexit
import os
import sys

atexit.register(print, "exit function")
log = open(f"log-{os.environ['RANK']}", "w")
log.write("all")
print("printed, ", end="")
os.write(1, b"written, ")
sys.stdout.buffer.write(b"buffered, ")
print("to the end", end="")
sys.stderr.write("\nan error without a newline")
os._exit(0)
