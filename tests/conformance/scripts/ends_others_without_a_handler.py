"""When a rank fails, another one that does not catch SIGTERM runs neither finally nor exit functions."""
import atexit
import os
import time
from pathlib import Path

if os.environ["RANK"] == "0":
    atexit.register(print, "exit function")
    try:
        Path("ready").touch()
        time.sleep(60)
    finally:
        print("finally")
while not Path("ready").exists():
    time.sleep(0.01)
os._exit(3)
