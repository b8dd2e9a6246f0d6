"""A compiled script runs without its source."""
# as: tool.pyc
import sys

print(__name__, __file__.rpartition("/")[2], sys.argv, type(__loader__).__name__, __spec__)
