"""An exception in a thread is printed, and the rank goes on, at its end as well; one in __del__, too."""
import os
import threading
import time


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


def fail(seconds):
    time.sleep(seconds)
    raise ValueError("in a thread")


thread = threading.Thread(target=fail, args=(0,))
thread.start()
thread.join()
Thing()
print("goes on")
threading.Thread(target=fail, args=(0.1,)).start()
log = open(f"log-{os.environ['RANK']}", "w")
log.write("all")
