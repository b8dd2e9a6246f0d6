"""sys.exit(True) is exit code 1."""
# nprocs: 1
import sys

sys.exit(True)
