"""A rank that has closed its stdout ends in good order."""
import os
import sys

print("said")
if os.environ["RANK"] == "0":
    sys.stdout.close()
else:
    os.close(1)
sys.stderr.write("still heard\n")
