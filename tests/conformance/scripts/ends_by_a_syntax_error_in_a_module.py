"""A syntax error in a module that is imported is shown as Python shows it."""
# nprocs: 1
from pathlib import Path

Path("broken.py").write_text("def f(:\n    pass\n")
import broken  # noqa: E402, F401
