"""sys.exit of a message writes it to stderr, and is exit code 1."""
# nprocs: 1
import sys

print("said before")
sys.exit("the data are missing: run\n  python download.py\nfirst ☃")
