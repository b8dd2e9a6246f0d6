"""A thread is waited for; a daemon thread is not."""
import os
import threading
import time
from pathlib import Path


def save(name, seconds):
    time.sleep(seconds)
    Path(f"{name}-{os.environ['RANK']}").write_text("all")


threading.Thread(target=save, args=("thread", 0.3)).start()
threading.Thread(target=save, args=("daemon", 20), daemon=True).start()
threading.Timer(0.4, save, ("timer", 0)).start()
threading._register_atexit(print, "before threads are joined")
