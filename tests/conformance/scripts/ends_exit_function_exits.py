"""sys.exit in an exit function does not change the exit code."""
import atexit
import sys

atexit.register(print, "still runs")
atexit.register(sys.exit, 3)
