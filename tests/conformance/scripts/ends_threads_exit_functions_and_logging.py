"""Exit functions run when all threads have ended."""
import atexit
import logging
import sys
import threading
import time

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
atexit.register(lambda: logging.info("last, threads: %d", threading.active_count()))
threading.Thread(target=lambda: (time.sleep(0.2), logging.info("late"))).start()
logging.info("first")
