"""A script that is a link finds the modules beside the file that it leads to."""
# as: link.py
import sys

import sibling

print(sibling.WHERE, sys.argv, __file__.rpartition("/")[2], sys.path[0].rpartition("/")[2])
