"""os.abort() has exit code -6."""
# nprocs: 1
import os

os.abort()
