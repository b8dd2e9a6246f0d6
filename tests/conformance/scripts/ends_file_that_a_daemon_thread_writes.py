"""A daemon thread still has a file open at the end, not flushed, and holds an object that nobody else does."""
# differs: daemon-thread
import os
import threading

written = threading.Event()


class Connection:
    def __del__(self, write=os.write):
        write(1, b"connection closed\n")


def watch():
    connection, log = Connection(), open(f"log-{os.environ['RANK']}", "w")
    log.write(f"watching by {type(connection).__name__}\n")
    written.set()
    threading.Event().wait()


threading.Thread(target=watch, daemon=True).start()
written.wait()
