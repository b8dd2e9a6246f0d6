"""A script's own use of faulthandler works: stacks at a signal, and after a time."""
import faulthandler
import os
import signal
import time

log = open(f"stacks-{os.environ['RANK']}", "w+")
faulthandler.register(signal.SIGUSR2, file=log)
faulthandler.dump_traceback_later(0.1, file=log)
os.kill(os.getpid(), signal.SIGUSR2)
time.sleep(0.3)
log.seek(0)
print([line.split()[0] for line in log if not line.startswith("  ")])
os.remove(log.name)
