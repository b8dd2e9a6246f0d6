"""A thread is waited for, and exit functions run after it; a daemon thread is not waited for."""
import atexit
import logging
import os
import sys
import threading
import time
from pathlib import Path


def save(name, seconds):
    time.sleep(seconds)
    Path(f"{name}-{os.environ['RANK']}").write_text("all")
    logging.info("saved %s", name)


logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
atexit.register(lambda: logging.info("threads at exit: %d", threading.active_count()))
threading.Thread(target=save, args=("thread", 0.3)).start()
threading.Thread(target=save, args=("daemon", 20), daemon=True).start()
threading.Timer(0.4, save, ("timer", 0)).start()
threading._register_atexit(print, "before threads are joined")
