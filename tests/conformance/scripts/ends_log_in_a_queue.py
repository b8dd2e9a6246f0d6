"""A logger that hands its lines to a thread and is stopped at exit loses none."""
import atexit
import logging
import logging.handlers
import queue
import sys

lines = queue.Queue()
listener = logging.handlers.QueueListener(lines, logging.StreamHandler(sys.stdout))
listener.start()
atexit.register(listener.stop)
logging.basicConfig(level=logging.INFO, handlers=[logging.handlers.QueueHandler(lines)])
for number in range(3):
    logging.info("line %d", number)
