"""os._exit in an exit function is the exit code."""
# nprocs: 1
import atexit
import os

atexit.register(os._exit, 4)
print("done")
