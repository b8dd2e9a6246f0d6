"""A pool of processes that nobody has shut down finishes its work."""
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def save(number):
    time.sleep(0.2)
    Path(f"saved-{os.environ['RANK']}-{number}").write_text("all")


pool = ProcessPoolExecutor(2)
for number in range(3):
    pool.submit(save, number)
print("submitted")
