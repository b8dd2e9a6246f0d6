"""sys.exit of nothing, of zero and of a multiple of 256 is success."""
# nprocs: 5
import os
import sys

sys.exit([None, 0, False, 256, 512][int(os.environ["RANK"])])
