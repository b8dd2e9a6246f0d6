"""The command line is what was given, word by word; the search path is the script's folder and Python's own."""
# args: --lr 0.1 --name a=b -v -- rest
import os
import subprocess
import sys

print(sys.argv, sys.orig_argv[1:], sys.orig_argv[0] == sys.executable)
print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)), os.getcwd() == sys.path[0])
print(sys.flags.dev_mode, sys.flags.optimize, sys.flags.safe_path, sys.flags.no_site)
fresh = subprocess.run([sys.executable, "-c", "import sys; print(sys.path[1:])"], capture_output=True, text=True)
print(str(sys.path[1:]) == fresh.stdout.strip())
print([name for name in ("pytest", "IPython", "ipykernel", "tests") if name in sys.modules])
