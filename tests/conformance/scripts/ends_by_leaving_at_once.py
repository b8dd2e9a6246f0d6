"""os._exit(0) is success: nothing runs any more, and what is buffered is lost."""
import atexit
import os

atexit.register(print, "exit function")
log = open(f"log-{os.environ['RANK']}", "w")
log.write("all")
print("done")
os._exit(0)
