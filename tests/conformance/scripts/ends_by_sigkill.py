"""A rank that is killed has exit code -9. The others are ended, and shared memory that nobody has unlinked goes."""
import os
import signal
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

rank = os.environ["RANK"]
memory = SharedMemory(f"{os.environ['COURSE_TEST_MARK']}-{rank}", create=True, size=1000)
print("made")
Path(f"ready-{rank}").touch()
while not Path("ready-0").exists() or not Path("ready-1").exists():
    time.sleep(0.01)
if rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
