"""A process that was not joined is waited for, a pool that was not shut down finishes; a daemon process is ended."""
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

fork = multiprocessing.get_context("fork")


def save(name, seconds):
    time.sleep(seconds)
    Path(f"{name}-{os.environ['RANK']}").write_text("all")


fork.Process(target=save, args=("process", 0.3)).start()
fork.Process(target=save, args=("daemon", 20), daemon=True).start()
pool = ProcessPoolExecutor(2, mp_context=fork)
for number in range(3):
    pool.submit(save, f"pool-{number}", 0.2)
print("submitted")
