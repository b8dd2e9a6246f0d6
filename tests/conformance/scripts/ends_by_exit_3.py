"""sys.exit(3) is exit code 3. Exit functions run and files are written before."""
# nprocs: 1
import atexit
import sys

atexit.register(print, "exit function")
log = open("log", "w")
log.write("all")
sys.exit(3)
