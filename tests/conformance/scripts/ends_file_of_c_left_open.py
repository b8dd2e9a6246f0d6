"""What C code has printed, or written into a file that it has not closed, is there."""
# nprocs: 1
import ctypes

c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fputs(b"from C", ctypes.c_void_p(c.fopen(b"c.txt", b"w")))
for _ in range(3):
    c.puts(b"line of C")
print("line of Python")
