import os
import sys

print("other program of rank", os.environ["RANK"], sys.argv)
