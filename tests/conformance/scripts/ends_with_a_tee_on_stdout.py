"""A tee in the place of sys.stdout, whose flush does nothing: its file holds all that was printed."""
import os
import sys


class Tee:
    def __init__(self, name):
        self.terminal = sys.stdout
        self.log = open(name, "w")

    def write(self, text):
        self.terminal.write(text)
        self.log.write(text)

    def flush(self):
        pass


sys.stdout = Tee(f"log-{os.environ['RANK']}")
print("epoch 0: loss 1.0")
print("epoch 1: loss 0.5")
