"""What runs at the end can use the script's globals, except __file__, and may import."""
import atexit
import sys
import threading
import time


def last(who):
    import colorsys

    print(who, NAME, sys.modules["__main__"].NAME, colorsys.__name__)
    print(who, [name for name in ("__file__", "__cached__", "__loader__") if name in globals()])


NAME = "name"
atexit.register(last, "exit function")
threading.Thread(target=lambda: (time.sleep(0.1), last("thread"))).start()
