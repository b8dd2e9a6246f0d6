"""A zip file with a __main__.py is a program."""
# as: tool.pyz
import pkgutil
import sys

print(__name__, repr(__package__), __spec__.name, sys.argv, sys.path[0].rpartition("run/")[2])
print(__file__.rpartition("run/")[2], type(__loader__).__name__)
print(pkgutil.get_data("__main__", "__main__.py")[:20])


def fail():
    raise KeyError("inside a zip file")


try:
    fail()
except KeyError as error:
    print(error.__traceback__.tb_frame.f_code.co_filename.rpartition("run/")[2])
