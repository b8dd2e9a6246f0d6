"""A rank that becomes another program is what that program is: its exit code, what it prints."""
import os
import sys

print("before")
os.execv(sys.executable, [sys.executable, "other.py", "argument"])
