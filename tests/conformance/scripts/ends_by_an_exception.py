"""An exception ends its rank with exit code 1, and the others. Exit functions run, files are written."""
import atexit
import os
import time

atexit.register(print, "exit function")
log = open(f"log-{os.environ['RANK']}", "w")
log.write("all")
if os.environ["RANK"] == "0":
    log.flush()
    open("ready", "w").close()
    time.sleep(60)
while not os.path.exists("ready"):
    time.sleep(0.01)
raise ValueError("boom")
