"""A progress bar's carriage returns, colours and bytes that are no text do not hurt."""
# differs: control-characters
import os
import sys

for done in range(3):
    print(f"\r{done} of 3", end="")
print("\n\x1b[1mbold\x1b[0m")
sys.stdout.buffer.write(b"\xff\xfe no text\n")
os.write(2, b"tab\there\n")
