"""A child that the script has forked fails for itself: by its exit code, or by an exception."""
import os
import sys

child = os.fork()
if not child:
    sys.exit(3)
print("child's exit code:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if not child:
    sys.stderr.write("Error in a child:\n")
    raise ValueError("of the child")
print("child's exit code:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
