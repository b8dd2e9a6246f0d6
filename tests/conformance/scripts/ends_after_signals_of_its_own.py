"""A script's own signal handlers are called: SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGHUP, SIGQUIT."""
import os
import signal
import time

names = ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGWINCH")


def handler(number, frame):
    print(signal.Signals(number).name, frame.f_code.co_name)


for name in names:
    signal.signal(getattr(signal, name), handler)
    os.kill(os.getpid(), getattr(signal, name))
signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.2)
