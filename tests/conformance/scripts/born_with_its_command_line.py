"""The system shows a rank by its own command line (ps, /proc)."""
# differs: interpreter
import sys

print(open("/proc/self/cmdline").read().split("\0")[1:-1] == sys.orig_argv[1:])
