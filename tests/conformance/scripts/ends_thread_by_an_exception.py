"""An exception in a thread is printed, and the rank goes on; one in __del__, too."""
import threading


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


def fail():
    raise ValueError("in a thread")


thread = threading.Thread(target=fail)
thread.start()
thread.join()
Thing()
print("goes on")
