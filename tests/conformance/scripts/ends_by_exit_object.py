"""sys.exit of an object writes it to stderr, and is exit code 1."""
# nprocs: 1
import sys

sys.exit({"reason": [1.5, ("a", None)]})
