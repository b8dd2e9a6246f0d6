"""SIGUSR1 without a handler ends the rank, with exit code -10."""
# nprocs: 1
import os
import signal

os.kill(os.getpid(), signal.SIGUSR1)
