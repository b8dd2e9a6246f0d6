"""A daemon thread that still runs stops in silence, whatever is taken apart around it."""
import sys
import threading
import time

itself = sys.modules[__name__]  # somebody still holds this module at the end


def step():
    time.sleep(0.01)


class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.1)


def run():
    while True:
        step()


threading.Thread(target=run, daemon=True).start()
slow = Slow()
print("the main thread ends")
