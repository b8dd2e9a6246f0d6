"""sys.exit(-1) is exit code 255."""
# nprocs: 1
import sys

sys.exit(-1)
