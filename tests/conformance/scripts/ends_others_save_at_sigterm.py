"""When a rank fails, the others get SIGTERM, and have time to save."""
import os
import signal
import sys
import time
from pathlib import Path


def save(number, frame):
    time.sleep(0.5)
    Path("saved").write_text(signal.Signals(number).name)
    sys.exit(0)


if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
    Path("ready").touch()
    time.sleep(60)
while not Path("ready").exists():
    time.sleep(0.01)
raise ValueError("boom")
