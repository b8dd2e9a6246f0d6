"""Each rank becomes another program, and the programs form the group."""
# slow
import os
import sys

os.execv(sys.executable, [sys.executable, "-u", "train.py"])
