"""Logging is untouched: the root logger has no handler, and torch's loggers are not there yet."""
# differs: already-imported
import logging

import psutil

root = logging.getLogger()
print(root.level, root.handlers, logging.lastResort.level, root.manager.disable)
print(any(name.startswith(("torch", "helpers")) for name in root.manager.loggerDict))
print("began with the process:", abs(logging._startTime - psutil.Process().create_time()) < 5)
logging.info("not shown")
logging.warning("shown")
