"""What a C library has registered with atexit runs at the end of the rank."""
# needs: cc
import ctypes
import os

library = ctypes.CDLL("./libbye.so")
library.at_exit_write_into(f"bye-{os.environ['RANK']}".encode())
