"""With -m, a module of a package runs as the program and finds its siblings."""
# as: -m package.tool
# args: --fast
import os
import sys

from . import sibling

print(__name__, __package__, __spec__.name, __spec__.parent, sibling.NAME, sys.path[0] == os.getcwd())
print(sys.argv[0].rpartition("run/")[2], sys.argv[1:], sys.orig_argv[1:])
print(type(__loader__).__name__, __cached__ is None)
