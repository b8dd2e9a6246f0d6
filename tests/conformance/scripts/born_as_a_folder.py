"""A folder with a __main__.py is a program."""
# as: folder
# args: 1
import sys

import sibling

print(__name__, repr(__package__), __spec__.name, sys.argv, sys.path[0].rpartition("run/")[2], sibling.NAME)
print(__file__.rpartition("run/")[2], type(__loader__).__name__, sorted(globals()))
