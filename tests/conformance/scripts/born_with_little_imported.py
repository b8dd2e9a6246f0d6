"""Torch and numpy are not there before the script imports them."""
# differs: already-imported
import sys

print([name for name in ("torch", "numpy", "multiprocessing", "pickle", "helpers") if name in sys.modules])
