"""A rank that has become another program fails as that program does."""
# nprocs: 1
import os

os.execvp("sh", ["sh", "-c", "echo said; exit 7"])
