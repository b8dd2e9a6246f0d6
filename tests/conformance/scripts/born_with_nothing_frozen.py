"""The garbage collector keeps no objects apart."""
# differs: interpreter
import gc

print(gc.get_freeze_count() == 0)
