"""sys.exit of a number that does not fit is exit code 255."""
# nprocs: 1
import sys

sys.exit(10**30)
