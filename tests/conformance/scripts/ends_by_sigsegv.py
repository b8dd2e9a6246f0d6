"""A crash in compiled code has exit code -11."""
# nprocs: 1
import ctypes

print("before", flush=True)
ctypes.string_at(0)
