"""A process that was not joined is waited for; a daemon process is ended."""
import multiprocessing
import os
import time
from pathlib import Path


def save(name, seconds):
    time.sleep(seconds)
    Path(f"{name}-{os.environ['RANK']}").write_text("all")


multiprocessing.Process(target=save, args=("process", 0.3)).start()
multiprocessing.Process(target=save, args=("daemon", 20), daemon=True).start()
