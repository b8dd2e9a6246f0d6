"""The script's own names are those of a program that Python runs."""
import sys

print(sorted(set(globals()) - {"__annotations__"}))  # which a script without any has up to Python 3.13
print(__name__, __file__.rpartition("/")[2], __spec__, __package__, __cached__)
print(type(__loader__).__name__, __loader__.name, __loader__.path == __file__, __doc__)
print(type(__builtins__).__name__)
print(sys.modules["__main__"].__dict__ is globals(), [name for name, module in sys.modules.items()
                                                      if getattr(module, "__dict__", None) is globals()])
print(sys._getframe().f_code.co_name)
