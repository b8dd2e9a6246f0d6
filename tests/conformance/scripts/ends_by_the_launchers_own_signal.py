"""SIGUSR2 without a handler ends the rank, with exit code -12."""
# nprocs: 1
import os
import signal

os.kill(os.getpid(), signal.SIGUSR2)
print("goes on")
