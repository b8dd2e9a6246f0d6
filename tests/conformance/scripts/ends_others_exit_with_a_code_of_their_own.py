"""When a rank fails, another one that catches SIGTERM may end with an exit code of its own."""
# differs: others
import atexit
import os
import signal
import sys
import time
from pathlib import Path

if os.environ["RANK"] == "0":
    atexit.register(print, "exit function")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    Path("ready").touch()
    time.sleep(60)
while not Path("ready").exists():
    time.sleep(0.01)
sys.exit(3)
