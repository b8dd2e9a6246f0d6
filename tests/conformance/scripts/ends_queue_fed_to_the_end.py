"""What was put into a queue arrives, although the rank has nothing more to do."""
import multiprocessing
import os
import time
from pathlib import Path


def receive(queue):
    time.sleep(0.3)
    Path(f"received-{os.environ['RANK']}").write_text(str(len(queue.get())))


queue = multiprocessing.Queue()
multiprocessing.Process(target=receive, args=(queue,)).start()
queue.put("x" * 1_000_000)
