"""SIGINT is a KeyboardInterrupt, which the script may catch; caught or not, finally runs."""
# nprocs: 1
import os
import signal

try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("caught")
try:
    signal.raise_signal(signal.SIGINT)
finally:
    print("finally")
