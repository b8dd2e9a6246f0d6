"""Shared memory that nobody has unlinked is removed, also when its rank is killed."""
import os
import signal
import time
from multiprocessing.shared_memory import SharedMemory

name = f"{os.environ['COURSE_TEST_MARK']}-{os.environ['RANK']}"
memory = SharedMemory(name, create=True, size=1000)
print("made")
if os.environ["RANK"] == "1":
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
