"""Compressed files, and files in text and bytes, are complete although nobody closed them."""
# nprocs: 1
# twice
import gzip
import lzma
import os
import zipfile

if os.path.exists("a.gz"):
    print(gzip.open("a.gz").read(), lzma.open("a.xz").read(), open("a.bin", "rb").read())
    print(zipfile.ZipFile("a.zip").namelist())
    for name in ("a.gz", "a.xz", "a.bin", "a.zip"):
        os.remove(name)
else:
    kept = [gzip.open("a.gz", "w"), lzma.open("a.xz", "w"), open("a.bin", "wb")]
    for file in kept:
        file.write(b"all of it")
    archive = zipfile.ZipFile("a.zip", "w")
    archive.writestr("inside", "x")
