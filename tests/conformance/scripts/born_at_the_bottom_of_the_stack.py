"""Nothing has called the script: its first frame is the last one."""
# differs: frames
import inspect
import sys

print(sys._getframe().f_back is None, len(inspect.stack()) == 1)
