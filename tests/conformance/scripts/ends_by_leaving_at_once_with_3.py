"""os._exit(3) is exit code 3."""
# nprocs: 1
import os

print("done")
os._exit(3)
