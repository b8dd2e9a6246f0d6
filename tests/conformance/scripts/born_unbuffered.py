"""What a rank prints without a newline is not lost when it leaves at once, and keeps its place."""
import os
import sys

print("printed, ", end="")
os.write(1, b"written, ")
sys.stdout.buffer.write(b"buffered, ")
print("to the end", end="")
sys.stderr.write("\nan error without a newline")
os._exit(0)
