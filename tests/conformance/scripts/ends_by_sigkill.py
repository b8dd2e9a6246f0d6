"""A rank that is killed has exit code -9, and the others are ended."""
import os
import signal
import time

if os.environ["RANK"] == "1":
    print("before", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
