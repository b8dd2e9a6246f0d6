"""With -m, a package runs by its __main__.py."""
# as: -m package.__main__
import sys

import package

print(__name__, __package__, package.__name__, sys.argv[0].rpartition("run/")[2])
