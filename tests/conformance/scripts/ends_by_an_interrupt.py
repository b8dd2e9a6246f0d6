"""A KeyboardInterrupt that the script raises itself ends the rank as SIGINT would."""
# nprocs: 1
import atexit

atexit.register(print, "exit function")
raise KeyboardInterrupt("by myself")
