"""Handlers of logging are flushed and closed at the end."""
import logging
import logging.handlers
import os


class Handler(logging.NullHandler):
    def close(self):
        print("closed")
        super().close()


target = logging.FileHandler(f"log-{os.environ['RANK']}", delay=True)
memory = logging.handlers.MemoryHandler(100, target=target)
logging.basicConfig(level=logging.INFO, handlers=[memory, Handler()])
logging.getLogger("mine").info("kept in memory until the end")
