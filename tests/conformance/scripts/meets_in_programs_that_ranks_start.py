"""Each rank starts the training as a program of its own; these programs form the group."""
# slow
import subprocess
import sys

subprocess.run([sys.executable, "train.py"], check=True)
